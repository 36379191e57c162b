"""HeadwayError
└── (nothing of billing's own yet)
"""

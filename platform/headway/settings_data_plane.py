"""Settings of the data plane's processes: the same, with the apps that pages need left out (about 40 MB less)."""

from headway.settings import *  # noqa: F403
from headway.settings import DATA_PLANE_APPS

INSTALLED_APPS = DATA_PLANE_APPS
MIDDLEWARE = []
ROOT_URLCONF = "headway.urls_data_plane"

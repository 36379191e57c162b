"""Tax numbers: their form is checked where the European Union has one for a country; that they exist is not. Pure."""

import re

from headway.errors import InvalidInput

# The country's prefix, then what its numbers look like (the Commission's VIES page lists them).
_EU_FORMS = {
    "AT": r"ATU\d{8}",
    "BE": r"BE[01]\d{9}",
    "BG": r"BG\d{9,10}",
    "CY": r"CY\d{8}[A-Z]",
    "CZ": r"CZ\d{8,10}",
    "DE": r"DE\d{9}",
    "DK": r"DK\d{8}",
    "EE": r"EE\d{9}",
    "ES": r"ES[A-Z0-9]\d{7}[A-Z0-9]",
    "FI": r"FI\d{8}",
    "FR": r"FR[A-HJ-NP-Z0-9]{2}\d{9}",
    "GR": r"EL\d{9}",
    "HR": r"HR\d{11}",
    "HU": r"HU\d{8}",
    "IE": r"IE(\d[A-Z0-9+*]\d{5}[A-Z]|\d{7}[A-W][A-I]?)",
    "IT": r"IT\d{11}",
    "LT": r"LT(\d{9}|\d{12})",
    "LU": r"LU\d{8}",
    "LV": r"LV\d{11}",
    "MT": r"MT\d{8}",
    "NL": r"NL\d{9}B\d{2}",
    "PL": r"PL\d{10}",
    "PT": r"PT\d{9}",
    "RO": r"RO\d{2,10}",
    "SE": r"SE\d{10}01",
    "SI": r"SI\d{8}",
    "SK": r"SK\d{10}",
}
_FORMS = _EU_FORMS | {
    "CH": r"CHE\d{9}(MWST|TVA|IVA)?",
    "GB": r"GB(\d{9}|\d{12}|(GD|HA)\d{3})",
    "NO": r"NO\d{9}(MVA)?",
}
_EXAMPLES = {"AT": "ATU12345678", "GR": "EL123456789", "NL": "NL123456789B01"}
_ANYWHERE = re.compile(r"[A-Z0-9][A-Z0-9+*]{1,29}")

EU = frozenset(_EU_FORMS)


def tidy_tax_id(text: str, *, country: str, param: str = "tax_id") -> str:
    """In capitals, without spaces, dots and dashes; a blank stays one. Raises InvalidInput for a form the country lacks."""
    tidy = re.sub(r"[\s.\-/]", "", text).upper()
    if not tidy:
        return ""
    form = _FORMS.get(country)
    if form is not None and not re.fullmatch(form, tidy, re.ASCII):
        prefix = "EL" if country == "GR" else country
        example = f", such as {_EXAMPLES[country]}" if country in _EXAMPLES else ""
        raise InvalidInput(f"a tax number of {country} has another form: it begins with {prefix}{example}", param=param)
    if not _ANYWHERE.fullmatch(tidy):
        raise InvalidInput("a tax number is 2 to 30 letters and digits", param=param)
    return tidy

"""Which tax an invoice bears: by our country, the customer's, and its tax number (docs/billing.md has the same in words).

    our own country is not set               no tax
    the customer is in our country           our country's rate
    in the EU, we too, with a VAT number     none: reverse charge, and the note says so
    in the EU, we too, without one           its country's rate where there is one set, else ours
    anywhere else                            none: outside the scope
A customer whose country is not known is taxed as one in our country.
"""

from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from billing.services.rates import tax_rate_on
from billing.services.tax_ids import EU


class Treatment(StrEnum):
    NONE = "none"
    DOMESTIC = "domestic"
    EU_CONSUMER = "eu_consumer"
    REVERSE_CHARGE = "reverse_charge"
    OUTSIDE = "outside"


REVERSE_CHARGE_NOTE = "Reverse charge: VAT is to be accounted for by the recipient (Article 196, Directive 2006/112/EC)."
OUTSIDE_NOTE = "Not subject to our VAT: the place of supply is the recipient's country."
TAX_NOTES = (REVERSE_CHARGE_NOTE, OUTSIDE_NOTE)


@dataclass(frozen=True)
class Tax:
    treatment: Treatment
    name: str = ""
    basis_points: int = 0
    note: str = ""

    @property
    def label(self) -> str:
        """ "VAT 19 %"; a blank where there is none."""
        whole, rest = divmod(self.basis_points, 100)
        percent = f"{whole}.{rest:02d}".rstrip("0").rstrip(".")
        return f"{self.name} {percent} %" if self.name else ""


def treatment_of(*, seller_country: str, country: str, tax_id: str) -> Treatment:
    """By the table above. Pure."""
    country = country or seller_country
    if not seller_country:
        return Treatment.NONE
    if country == seller_country:
        return Treatment.DOMESTIC
    if country in EU and seller_country in EU:
        return Treatment.REVERSE_CHARGE if tax_id else Treatment.EU_CONSUMER
    return Treatment.OUTSIDE


def tax_of(*, seller_country: str, country: str, tax_id: str, on: date) -> Tax:
    """With the rate that holds on that day; a country without a rate has none."""
    treatment = treatment_of(seller_country=seller_country, country=country, tax_id=tax_id)
    if treatment is Treatment.REVERSE_CHARGE:
        return Tax(treatment, note=REVERSE_CHARGE_NOTE)
    if treatment is Treatment.OUTSIDE:
        return Tax(treatment, note=OUTSIDE_NOTE)
    if treatment is Treatment.NONE:
        return Tax(treatment)
    of_theirs = tax_rate_on(country, on) if treatment is Treatment.EU_CONSUMER else None
    rate = of_theirs or tax_rate_on(seller_country, on)
    return Tax(treatment, rate.name, rate.basis_points) if rate is not None else Tax(treatment)

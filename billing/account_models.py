"""Who is billed, and the rates that bills are made with."""

from django.db import models

from headway.money import micros_to_usd, picos_to_usd


class BillingAccount(models.Model):
    """Whom a tenant's invoices name. One a tenant; invoices keep a copy of what it was when they were issued."""

    tenant_id = models.UUIDField(unique=True)
    legal_name = models.CharField(max_length=200, blank=True, help_text="blank: the tenant's name")
    address = models.JSONField(default=list, blank=True, help_text="lines, without the country")
    country = models.CharField(max_length=2, blank=True, help_text="ISO 3166")
    tax_id = models.CharField(max_length=32, blank=True, help_text="VAT number, with its country's prefix in the EU")
    email = models.EmailField(blank=True, help_text="where invoices are mailed to")
    purchase_order = models.CharField(max_length=64, blank=True)
    currency = models.CharField(max_length=3, default="USD", help_text="ISO 4217")
    updated_at = models.DateTimeField(auto_now=True)

    def __str__(self) -> str:
        return self.legal_name or str(self.tenant_id)


class TaxRate(models.Model):
    """What a country taxes our service with from a day on. Append-only: a new rate is a new row."""

    country = models.CharField(max_length=2, help_text="ISO 3166")
    name = models.CharField(max_length=32, help_text="as invoices print it: VAT, MwSt, GST")
    basis_points = models.PositiveIntegerField(help_text="hundredths of a percent: 1900 is 19 %")
    effective_from = models.DateField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("country", "effective_from"), name="one_tax_rate_per_country_and_day"),
            models.CheckConstraint(condition=models.Q(basis_points__lte=10_000), name="a_tax_is_at_most_everything"),
        )

    def __str__(self) -> str:
        return f"{self.country} {self.percent} % from {self.effective_from}"

    @property
    def percent(self) -> str:
        """ "19.00"."""
        return micros_to_usd(self.basis_points * 10_000)


class ExchangeRate(models.Model):
    """What a US dollar is in another currency from a day on. Append-only."""

    currency = models.CharField(max_length=3, help_text="ISO 4217")
    rate_nanos = models.BigIntegerField(help_text="billionths of the currency's unit for one US dollar")
    effective_from = models.DateField()
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("currency", "effective_from"), name="one_exchange_rate_per_currency_and_day"),
            models.CheckConstraint(condition=models.Q(rate_nanos__gt=0), name="a_dollar_is_worth_something"),
        )

    def __str__(self) -> str:
        return f"USD 1 = {self.currency} {self.units_per_usd} from {self.effective_from}"

    @property
    def units_per_usd(self) -> str:
        """ "0.92"."""
        return picos_to_usd(self.rate_nanos * 1_000)

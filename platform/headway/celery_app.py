"""Celery for the workers. The broker carries "look at entry 7" and nothing else, so that losing it loses nothing."""

from celery import Celery

app = Celery("headway")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["workers"])

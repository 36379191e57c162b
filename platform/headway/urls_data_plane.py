"""The data plane serves no Django views: its routes are in inference/gateway/app.py."""

urlpatterns: list[object] = []

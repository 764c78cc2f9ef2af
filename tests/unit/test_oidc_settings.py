"""The settings of signing in by a provider: what protects nobody is refused when they are read."""

import pytest

from muster.core.values.errors import SettingsError
from muster.settings import load_settings
from tests.command_line import write_settings

RIGHT = {
    "issuer": "https://login.site.example/realms/site",
    "client_id": "muster",
    "client_secret_file": "/etc/muster/oidc_secret",
    "public_url": "https://muster.site.example/",
    "allowed_groups": ["researchers"],
}


def test_right_ones_say_where_the_provider_sends_browsers(tmp_path):
    oidc = load_settings(write_settings(tmp_path, {"web": {"oidc": {**RIGHT, "lifetime": "12h"}}})).web.oidc
    assert oidc.redirect_uri == "https://muster.site.example/sign-in/oidc/callback"
    assert oidc.lifetime == 12 * 3600


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"issuer": "http://login.site.example"}, "issuer: 'http://login.site.example' is no URL of https"),
        ({"issuer": "https://x@login.site.example"}, "is no URL of https"),
        ({"issuer": "https://"}, "is no URL of https"),
        ({"issuer": "https://a:99999999"}, "is no URL of https"),
        ({"issuer": "https://a?b=c"}, "is no URL of https"),
        ({"public_url": "http://muster.site.example"}, "public_url: .* is no URL of https"),
        ({"public_url": "https://site.example/muster"}, "has a path"),
        ({"scopes": ["profile"]}, "scopes: there is no openid"),
        ({"user_claim": "a b"}, "'a b' is no claim"),
        ({"lifetime": "5s"}, "lifetime: it is less than a minute"),
        ({"lifetime": "366d"}, "more than a year"),
        ({"allowed_groups": []}, "nobody may sign in; set allowed_groups, or allowed_users"),
        ({"alowed_users": ["ada"]}, "did you mean allowed_users"),
    ],
)
def test_wrong_ones_are_refused_with_the_field(tmp_path, wrong, message):
    with pytest.raises(SettingsError, match=message) as refused:
        load_settings(write_settings(tmp_path, {"web": {"oidc": {**RIGHT, **wrong}}}))
    assert "web.oidc" in str(refused.value)

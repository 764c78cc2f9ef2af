"""What the site says of `muster web`: who reads its metrics, how much one user may request, and who signs in how."""

from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from pydantic import Field, field_validator

from muster.core.spec.values import Bytes, invalid
from muster.oidc_settings import OidcSettings
from muster.settings_section import MOST_COUNT, Count, Section


class WebSettings(Section):
    """The settings of `muster web`. Limits are for each user and each server."""

    metrics_from: tuple[str, ...] = Field(
        default=("127.0.0.0/8", "::1/128"), description="networks from which /metrics is read without a token"
    )
    requests_per_minute: int | None = Field(
        default=6000, ge=60, le=MOST_COUNT, description="requests of one user in a minute; null for any number"
    )
    event_streams: Count = Field(default=50, description="event streams of one user at once; an open page has one")
    logs: Count = Field(default=20, description="logs that one user reads at once")
    files: Count = Field(default=8, description="files that one user downloads or uploads at once")
    upload_max_size: Bytes = Field(default=100 << 30, description="bytes of a file that is uploaded to a folder")
    terminals: Count = Field(default=40, description="terminals of one user in the pages at once")
    oidc: OidcSettings | None = Field(default=None, description="signing in to the pages by a provider of the site's")

    @field_validator("metrics_from")
    @classmethod
    def _networks(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            try:
                ip_network(text)
            except ValueError:
                raise invalid(f"{text!r} is no network", "write one such as 10.1.0.0/16 or 10.1.2.3") from None
        return texts

    def may_read_metrics(self, address: str) -> bool:
        """Return whether /metrics is read from this address without a token."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        # IPv4 on a socket of both protocols looks like ::ffff:127.0.0.1.
        found = getattr(found, "ipv4_mapped", None) or found
        return any(found in network for network in self._metrics_networks)

    @property
    def _metrics_networks(self) -> list[IPv4Network | IPv6Network]:
        return [ip_network(text) for text in self.metrics_from]

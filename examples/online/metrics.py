"""Scrape the server's Prometheus metrics and print throughput and latency so far."""

import httpx
from _connection import API_KEY, URL
from prometheus_client.parser import text_string_to_metric_families


def main() -> None:
    """Print a few sums of ``/metrics``."""
    response = httpx.get(f"{URL}/metrics", headers={"Authorization": f"Bearer {API_KEY}"})
    response.raise_for_status()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    print("prompt tokens:", int(sums["octavo:prompt_tokens_total"]))
    print("generated tokens:", int(sums["octavo:generation_tokens_total"]))
    print("requests running:", int(sums["octavo:num_requests_running"]))
    count = sums["octavo:time_to_first_token_seconds_count"]
    if count:
        print(f"mean time to first token: {sums['octavo:time_to_first_token_seconds_sum'] / count:.3f} s")


if __name__ == "__main__":
    main()

"""`lipt up`: a coordinator and its workers in one command, with the page."""

import httpx
import pytest

from lipt import Client
from lipt.common.config.settings import load_settings
from lipt.worker.pool import up
from lipt.worker.settings import PoolSettings
from tests.cluster import Cluster


def test_the_page_s_link_signs_a_browser_in(cluster: Cluster) -> None:
    process = cluster.start(
        "up",
        [
            *("-m", "lipt.cli", "up", "--page", "--data", "digits", "--model", "resnet8"),
            *("--listen", "127.0.0.1:0", "--state-dir", str(cluster.state)),
        ],
    )
    url = process.wait_for(r"The page is at (http://127\.0\.0\.1:\d+)\. ")[1]
    link = process.wait_for(rf"^    ({url}/sign-in\?code=\S+)$")[1]
    process.wait_for(r"For another link: lipt dashboard --coordinator 127\.0\.0\.1:\d+$")
    with httpx.Client(trust_env=False, headers={"Origin": url}, timeout=60.0) as browser:
        call = f"{url}/api/AccessService/WhoAmI"
        assert browser.post(call, json={}).status_code == 401
        browser.get(link, follow_redirects=True)
        assert "ROLE_ADMIN" in browser.post(call, json={}).text
    assert process.stop() == 0


def test_a_token_of_workers_opens_no_page_and_the_way_to_it_is_printed(
    ready: Cluster, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = {"coordinator": ready.address, "token": client.create_token("worker").secret}
    up._print_page(load_settings(PoolSettings, config=None, flags=flags), "lipt dashboard")
    assert capsys.readouterr().out == (
        "The page is at the address above. With your own certificate or token,\n"
        "this prints a link that signs you in: lipt dashboard\n"
    )

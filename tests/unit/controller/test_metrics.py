"""/metrics of a controller, and the table of the guide."""

import re
from pathlib import Path

import replica_requests as requests
from controller_subject import ControllerSubject
from reput.controller.metrics import ControllerMeter
from reput.remoting.metrics_server import Family

GUIDE = Path(__file__).parents[3] / "docs/how-to/run-a-controller.md"


async def test_metrics(tmp_path: Path) -> None:
    async with ControllerSubject(tmp_path) as subject:
        first, _ = await subject.group_of(1, 2)
        await first.ask(requests.elect(2, designate=True))
        families = await ControllerMeter(subject.controller).measure()
        assert (await ControllerMeter(subject.controller).check_health()).is_well
    values = {family.name: family.values for family in families if isinstance(family, Family)}
    of_group = ("DefaultCluster", "broker-a")
    assert values["reput_controller_active_brokers"] == {of_group: 2}
    assert values["reput_controller_in_sync_replicas"] == {of_group: 1}
    assert values["reput_controller_master_epoch"] == {of_group: 2}
    assert values["reput_controller_elections_total"] == {
        ("new_master",): 2,
        ("no_master",): 0,
        ("failed",): 0,
    }
    assert values["reput_controller_groups"] == {(): 1}
    assert values["reput_controller_leading"] == {(): 1}
    own = next(iter(values["role"]))
    assert own[1:] == ("reput", "n0")
    assert values["role"] == {own: 3}
    assert values["active_broker_num"] == {(*own, *of_group): 2}
    assert values["election_total"] == {(*own, *of_group, "new_master_elected"): 2}
    assert values["request_total"][(*own, "controller_elect_master", "success")] == 2
    assert values["request_total"][(*own, "controller_broker_heartbeat", "success")] == 2
    # Two ids, the first master, the set, and the second master.
    assert values["reput_controller_changes_total"] == {(): 5}
    documented = set(re.findall(r"`(reput_controller_\w+)`", GUIDE.read_text("utf-8")))
    assert documented == {name for name in values if name.startswith("reput_controller_")}

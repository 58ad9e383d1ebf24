"""Commands about service time."""

import typer

from posthouse.cli import output
from posthouse.cli.operator import perform
from posthouse.cli.output import AsJson
from posthouse.rules import service_time

clock = typer.Typer(no_args_is_help=True)


@clock.command("show")
def show(as_json: AsJson = False) -> None:
    """Show service time beside the clocks of the database and of this machine."""
    state = perform(lambda services: services.clock.state())
    values = {
        "service_time": state.service_time,
        "database_time": state.database_time,
        "host_time": state.host_time,
        "step_seconds": 0.0 if state.step is None else round(state.step.total_seconds(), 3),
    }
    if as_json:
        return output.write_json(values)
    output.write_values(values)
    return output.write_line(
        "The database's clock is believed." if state.step is None else service_time.explain(state.step)
    )


@clock.command("accept")
def accept(as_json: AsJson = False) -> None:
    """Make the database's time service time, although it has stepped. What it makes too old will expire."""
    perform(lambda services: services.clock.accept())
    done = "The database's time is accepted; every process follows within seconds."
    output.write_done(done, {"accepted": True}, as_json=as_json)

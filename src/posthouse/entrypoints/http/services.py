"""The flows that the HTTP entry point translates to."""

from dataclasses import dataclass

from posthouse.flows.accounting import Accounting
from posthouse.flows.admission import Admission
from posthouse.flows.archive import Archive
from posthouse.flows.authoring import Authoring
from posthouse.flows.inquiry import Inquiry
from posthouse.flows.intake import Intake
from posthouse.flows.keyring import Keyring
from posthouse.flows.registration import Registration
from posthouse.flows.rehearsal import Rehearsal
from posthouse.flows.sessions import Sessions
from posthouse.flows.subscription import Subscription
from posthouse.flows.suppression import Suppression
from posthouse.flows.team import Team
from posthouse.flows.unsubscription import Unsubscription


@dataclass(frozen=True, slots=True)
class Services:
    admission: Admission
    intake: Intake
    inquiry: Inquiry
    authoring: Authoring
    subscription: Subscription
    unsubscription: Unsubscription
    sessions: Sessions
    team: Team
    accounting: Accounting
    registration: Registration
    keyring: Keyring
    archive: Archive
    suppression: Suppression
    rehearsal: Rehearsal

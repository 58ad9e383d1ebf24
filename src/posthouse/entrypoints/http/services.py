"""The flows that the HTTP entry point translates to."""

from dataclasses import dataclass

from posthouse.flows.admission import Admission
from posthouse.flows.authoring import Authoring
from posthouse.flows.inquiry import Inquiry
from posthouse.flows.intake import Intake
from posthouse.flows.subscription import Subscription
from posthouse.flows.unsubscription import Unsubscription


@dataclass(frozen=True, slots=True)
class Services:
    admission: Admission
    intake: Intake
    inquiry: Inquiry
    authoring: Authoring
    subscription: Subscription
    unsubscription: Unsubscription

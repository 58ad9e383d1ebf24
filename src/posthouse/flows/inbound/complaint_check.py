"""Complaint check: whether a complaint comes from a feedback loop, by its DKIM signature or its peer's address."""

import asyncio
from collections.abc import Callable
from typing import Final

from posthouse.mail import dkim_check
from posthouse.mail.dkim_check import Signature, SignedMail
from posthouse.rules.domain import NoTxtRecord, TxtUnknown, TxtValues
from posthouse.rules.feedback_loops import FeedbackLoops
from posthouse.rules.refusal import Code, Refusal
from posthouse.wire.dns import Resolver

CHECK_SECONDS_MAX: Final = 15.0
# Each takes a thread, and mail with a valid token but a forged signature costs its sender little.
CHECKS_MAX: Final = 2


class ComplaintCheck:
    def __init__(self, *, resolver: Resolver, loops: FeedbackLoops) -> None:
        self._resolver = resolver
        self._loops = loops
        self._slots = asyncio.Semaphore(CHECKS_MAX)

    def trusts_peer(self, peer: str) -> bool:
        return self._loops.trusts_peer(peer)

    async def is_signed(self, mail: bytes, is_ours: Callable[[str], bool]) -> bool:
        """Whether a provider on the list wrote it to an address of ours, and signed it.

        A report to another sender, which that sender passes on to us, has a valid signature as well: so the To field
        counts, not the envelope.
        """
        signed = dkim_check.read(mail)
        if signed is None or not any(map(is_ours, signed.addressees)):
            return False
        chosen = [found for found in signed.signatures if self._loops.trusts(signed.author, found.domain)]
        try:
            async with asyncio.timeout(CHECK_SECONDS_MAX):
                for signature in chosen:
                    if await self._is_valid(signed, signature):
                        return True
        except TimeoutError:
            raise _try_again("checking its signature took too long") from None
        return False

    async def _is_valid(self, mail: SignedMail, signature: Signature) -> bool:
        match await self._resolver.cached_texts(signature.record_name):
            case TxtValues((record,)):
                async with self._slots:
                    return await asyncio.to_thread(dkim_check.is_valid, mail, signature, record)
            case TxtValues() | NoTxtRecord():
                return False
            case TxtUnknown(reason):
                raise _try_again(reason)


def _try_again(reason: str) -> Refusal:
    return Refusal(Code.TEMPORARY_FAILURE, f"The report can't be verified now ({reason}); send it again later.")

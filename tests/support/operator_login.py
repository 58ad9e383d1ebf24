"""A user who operates the service: a login, the flag, and a second factor."""

from tests.support.service import PASSWORD, Service, Tenant


async def operator_login(tenant: Tenant, *, role: str = "viewer") -> tuple[str, str]:
    """The address of a new operator, and the value of an Authorization header."""
    email = await tenant.user(role)
    answer = await tenant.service.login(email, PASSWORD)
    assert answer.status == 200, answer.raw
    await set_operator(tenant.service, email)
    await add_second_factor(tenant.service, email)
    return email, f"Bearer {answer.body['token']}"


async def set_operator(service: Service, email: str, *, is_operator: bool = True) -> None:
    query = "UPDATE users SET operator_since = CASE WHEN $2 THEN now() END WHERE email = $1"
    await service.sql(query, email, is_operator)


async def add_second_factor(service: Service, email: str) -> None:
    """It is there and confirmed; no code fits it."""
    await service.sql(
        "INSERT INTO second_factors (user_id, secret_sealed, created_at, confirmed_at)"
        r" SELECT id, '\x010178', now(), now() FROM users WHERE email = $1",
        email,
    )

<?php

declare(strict_types=1);

namespace Posthouse;

/** Who calls: Credential::bearer() for an API key or a token, Credential::basic() for a user name and password. */
final class Credential
{
    private function __construct(private readonly Secret $authorization)
    {
    }

    /** An API key (`ph_live_…`, `ph_test_…`; with the read scope if it is to read), or a token from a login. */
    public static function bearer(#[\SensitiveParameter] string $token): self
    {
        return new self(new Secret('Bearer ' . Checks::bearerToken($token)));
    }

    /** The user name and password of an SMTP credential. */
    public static function basic(string $username, #[\SensitiveParameter] string $password): self
    {
        $pair = Checks::userName($username) . ':' . Checks::password($password);

        return new self(new Secret('Basic ' . base64_encode($pair)));
    }

    /** @internal */
    public function authorization(): Secret
    {
        return $this->authorization;
    }
}

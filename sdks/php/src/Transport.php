<?php

declare(strict_types=1);

namespace Posthouse;

/** What carries a request to the service and its answer back. */
interface Transport
{
    /**
     * The answer, whatever its status; redirects are not followed.
     *
     * @throws AttemptTimeoutException when the whole takes longer than that
     * @throws ConnectionFailedException when there is no whole answer
     */
    public function exchange(Request $request, float $timeoutSeconds): Answer;
}

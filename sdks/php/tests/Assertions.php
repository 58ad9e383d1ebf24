<?php

declare(strict_types=1);

/** Why a test can't be run here. */
final class Skipped extends Exception
{
}

/** What tests say. */
trait Assertions
{
    protected function same(mixed $expected, mixed $actual, string $about = ''): void
    {
        if ($expected !== $actual) {
            $this->fail(sprintf('%s: %s, not %s', $about, var_export($actual, true), var_export($expected, true)));
        }
    }

    protected function lacks(string $secret, string $shown, string $about = ''): void
    {
        if (str_contains($shown, $secret)) {
            $this->fail("{$about} shows {$secret}: {$shown}");
        }
    }

    /**
     * @template T of Throwable
     * @param class-string<T> $class
     * @return T
     */
    protected function throws(string $class, Closure $call): Throwable
    {
        try {
            $call();
        } catch (Throwable $thrown) {
            if ($thrown instanceof $class) {
                return $thrown;
            }
            throw $thrown;
        }
        $this->fail("no {$class} was thrown");
    }

    protected function fail(string $text): never
    {
        throw new LogicException($text);
    }
}

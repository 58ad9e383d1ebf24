package example.posthouse;

import java.time.Duration;

/**
 * One attempt of a call.
 *
 * @param status null if there was no answer
 * @param attempt from 1
 * @param nextWait until the next attempt; null if there is none
 */
public record DebugEvent(
        String method, String url, Integer status, int attempt, Duration duration, Duration nextWait) {}

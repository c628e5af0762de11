/**
 * Logging: one JSON line per event on stderr, readable lines on a terminal.
 *
 * Bound: lines wait in memory while stderr does not take them, up to 1 MiB a process; beyond that they are dropped, never the process held up. Lines that
 * cannot be written, such as those for a disk that is full, are dropped too.
 * Text that comes from requests is only ever a value of a field, never part of the message.
 */
import { type DestinationStream, type Logger, pino, stdTimeFunctions } from 'pino';
import { prettyFactory } from 'pino-pretty';
import { LineOutput } from '../system/output.ts';
import type { LogLevel } from './settings.ts';

export type { Logger } from 'pino';

const BUFFER_MAX_BYTES = 1024 * 1024;

/** A logger whose lines carry the role of the process (`supervisor`, `ingress`, `device`). */
export function createLogger(role: string, level: LogLevel, fields: Record<string, unknown> = {}): Logger {
  const options = {
    level,
    base: { role, pid: process.pid, ...fields },
    timestamp: stdTimeFunctions.isoTime,
    formatters: { level: (label: string) => ({ level: label }) },
  };
  const output = new LineOutput(2, BUFFER_MAX_BYTES);
  process.once('exit', () => output.flush());
  if (process.stderr.isTTY) {
    const colorize = (process.env.NO_COLOR ?? '') === '';
    const format = prettyFactory({ colorize, ignore: 'pid', translateTime: 'SYS:HH:MM:ss.l', singleLine: true });
    return pino(options, {
      write: (line) => output.write(format(line)),
      flush: () => output.flush(),
    } as DestinationStream);
  }
  return pino(options, output);
}

/** Writes what is still buffered. For the last words of a process. */
export function flushLogs(logger: Logger): void {
  logger.flush();
}

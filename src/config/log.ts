/**
 * Logging: one JSON line per event on stderr, readable lines on a terminal.
 *
 * Bound: lines wait in memory while stderr does not take them, up to 1 MiB a process; beyond that they are dropped, never the process held up. Lines that
 * cannot be written, such as those for a disk that is full, are dropped too.
 * Text that comes from requests is only ever a value of a field, never part of the message.
 */
import { type DestinationStream, type Logger, type LoggerOptions, pino, stdTimeFunctions } from 'pino';
import { prettyFactory } from 'pino-pretty';
import { LineOutput } from '../system/output.ts';
import { isLogged, type LogSettings, logSettingsOf } from './log-settings.ts';
import { LOG_LEVELS, type LogLevel } from './settings.ts';

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
  const shown = new Set<number>();
  // Levels are on and off one by one, and not from one on.
  const hooks: LoggerOptions['hooks'] = {
    logMethod(args, method, number) {
      if (shown.has(number)) method.apply(this, args);
    },
  };
  const output = new LineOutput(2, BUFFER_MAX_BYTES);
  process.once('exit', () => output.flush());
  if (process.stderr.isTTY) {
    const colorize = (process.env.NO_COLOR ?? '') === '';
    const format = prettyFactory({ colorize, ignore: 'pid', translateTime: 'SYS:HH:MM:ss.l', singleLine: true });
    return known(
      shown,
      level,
      pino({ ...options, hooks }, {
        write: (line) => output.write(format(line)),
        flush: () => output.flush(),
      } as DestinationStream),
    );
  }
  return known(shown, level, pino({ ...options, hooks }, output));
}

/** Levels that a logger writes, by their numbers. */
const SHOWN = new WeakMap<Logger, Set<number>>();

function known(shown: Set<number>, level: LogLevel, logger: Logger): Logger {
  SHOWN.set(logger, shown);
  setLogging(logger, logSettingsOf(level));
  return logger;
}

/** From now on the logger writes what the settings say. */
export function setLogging(logger: Logger, settings: LogSettings): void {
  const shown = SHOWN.get(logger);
  if (shown === undefined) throw new Error('not a logger of createLogger(): this is a bug');
  const levels = LOG_LEVELS.filter((level) => isLogged(settings, level));
  shown.clear();
  for (const level of levels) shown.add(logger.levels.values[level]!);
  // From the most to the least important: below the last one that is on, calls cost nothing.
  logger.level = levels.at(-1)!;
}

/** Writes what is still buffered. For the last words of a process. */
export function flushLogs(logger: Logger): void {
  logger.flush();
}

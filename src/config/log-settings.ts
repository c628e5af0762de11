/**
 * What is logged, as the protocol's logging extension has it: three kinds of lines that are on or off, and how much of the rest. Starts from `--log-level`.
 */
import { BatchportError } from './errors.ts';
import type { LogLevel } from './settings.ts';

export interface LogSettings {
  readonly info: boolean;
  readonly warning: boolean;
  readonly error: boolean;
  /** 0: nothing more; 1: debug; 2: all there is. */
  readonly verboseLevel: number;
}

const VERBOSE_MAX = 2;

/** Those of a level of `--log-level`. */
export function logSettingsOf(level: LogLevel): LogSettings {
  const upTo = (...levels: LogLevel[]) => levels.includes(level);
  return {
    error: level !== 'fatal',
    warning: !upTo('fatal', 'error'),
    info: upTo('info', 'debug', 'trace'),
    verboseLevel: level === 'trace' ? 2 : level === 'debug' ? 1 : 0,
  };
}

/** Whether lines of a level are written. What is fatal always is. */
export function isLogged({ info, warning, error, verboseLevel }: LogSettings, level: LogLevel): boolean {
  switch (level) {
    case 'fatal':
      return true;
    case 'error':
      return error;
    case 'warn':
      return warning;
    case 'info':
      return info;
    case 'debug':
      return verboseLevel >= 1;
    case 'trace':
      return verboseLevel >= 2;
  }
}

/** As the protocol tells them. */
export function logDocument({ info, warning, error, verboseLevel }: LogSettings) {
  return {
    log_file: '',
    log_info: info,
    log_warning: warning,
    log_error: error,
    log_verbose_level: verboseLevel,
    log_format: 'ISO8601',
  };
}

/**
 * The settings with a client's changes; null changes nothing.
 *
 * @throws BAD_REQUEST for what cannot be changed so
 */
export function changedLogSettings(settings: LogSettings, changes: Readonly<Record<string, unknown>>): LogSettings {
  let { info, warning, error, verboseLevel } = settings;
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) continue;
    switch (name) {
      case 'log_info':
        info = flag(name, value);
        break;
      case 'log_warning':
        warning = flag(name, value);
        break;
      case 'log_error':
        error = flag(name, value);
        break;
      case 'log_verbose_level':
        if (!Number.isSafeInteger(value) || (value as number) < 0) {
          throw new BatchportError('BAD_REQUEST', "'log_verbose_level' must be an integer of 0 or more.");
        }
        verboseLevel = Math.min(value as number, VERBOSE_MAX);
        break;
      case 'log_format':
        if (value === 'ISO8601') break;
        throw new BatchportError(
          'BAD_REQUEST',
          "'log_format' is always ISO8601: lines are JSON with times of that form.",
        );
      case 'log_file':
        if (value === '') break;
        throw new BatchportError('BAD_REQUEST', "'log_file' cannot be updated: the log goes to stderr.");
      default:
        throw new BatchportError('BAD_REQUEST', `There is no log setting of that name; there are: ${NAMES}.`);
    }
  }
  return { info, warning, error, verboseLevel };
}

const NAMES = Object.keys(logDocument(logSettingsOf('info'))).join(', ');

function flag(name: string, value: unknown): boolean {
  if (typeof value === 'boolean') return value;
  throw new BatchportError('BAD_REQUEST', `'${name}' must be true or false.`);
}

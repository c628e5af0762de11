/**
 * Whether the server is ready, derived from the states of the models and nothing else: never vacuously true.
 */

import { announced } from './announced.ts';
import type { ServedVersion } from './served-version.ts';
import type { ServerState } from './supervisor.ts';

export class Readiness {
  readonly #versions: readonly ServedVersion[];
  readonly #strict: boolean;
  readonly #mayBeEmpty: boolean;

  /** @param mayBeEmpty whether a server without models is ready: to be told which to load */
  constructor(versions: readonly ServedVersion[], strict: boolean, mayBeEmpty: boolean) {
    this.#versions = versions;
    this.#strict = strict;
    this.#mayBeEmpty = mayBeEmpty;
  }

  /** Those that are loaded or unloaded on command do not make the server unready meanwhile; strictly, one that could not be loaded does. */
  get #counted(): ServedVersion[] {
    return announced(this.#versions).filter(
      ({ counts, failed, ended }) => counts || (this.#strict && failed && !ended),
    );
  }

  /** Every version is ready, or nobody is about to make it so. */
  get settled(): boolean {
    return this.#counted.every(({ record, abandoned }) => record.state === 'READY' || abandoned);
  }

  /** `reason` says why not, for people. */
  now(server: ServerState): { ready: boolean; reason: string } {
    if (server === 'draining' || server === 'stopped') return { ready: false, reason: 'the server is shutting down' };
    const counted = this.#counted;
    const waiting = counted.filter(({ record }) => record.state !== 'READY');
    const failed = waiting.filter((version) => version.failed);
    const coming = waiting.length - failed.length;
    if (coming > 0) return { ready: false, reason: reasons(waiting.filter((version) => !failed.includes(version))) };
    if (failed.length > 0 && (this.#strict || failed.length === counted.length)) {
      return { ready: false, reason: reasons(failed) };
    }
    if (counted.length === 0 && !this.#mayBeEmpty) return { ready: false, reason: 'there is no model' };
    return { ready: true, reason: '' };
  }

  summary(): { modelsReady: number; modelsFailed: number } {
    const counted = this.#counted;
    const ready = counted.filter(({ record }) => record.state === 'READY').length;
    return { modelsReady: ready, modelsFailed: counted.length - ready };
  }
}

function reasons(versions: readonly ServedVersion[]): string {
  return versions
    .slice(0, 5)
    .map(({ key, record }) => `${key}: ${record.reason || record.state}`)
    .join('; ');
}

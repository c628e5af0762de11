/**
 * Gets one file into the cache: from the cache, by waiting for whoever fetches it already, or by fetching it.
 *
 *     in the cache? ─▶ lease
 *     turn ─▶ in the cache meanwhile? ─▶ part of an earlier fetch, or a new one
 *          ─▶ attempt ─▶ limited: pause as asked │ broken: back off │ whole ─▶ hash ─▶ renamed into the cache ─▶ lease
 *
 * A wrong hash is final when every byte came in one answer of known length. Bytes that an earlier process or answer left may be of another file, and a body without an
 * announced length may have been cut: then the file is fetched once more, from its start.
 */

import { shownUrl } from '../config/weight-url.ts';
import { checkModelFile } from '../repository/model-file.ts';
import { afterAttempt, firstAttempt, WAIT_MAX_S } from './attempts.ts';
import type { Lease } from './cache.ts';
import { WeightFault } from './fault.ts';
import { otherProgress, Partial } from './partial.ts';
import type { Tracker } from './tracker.ts';
import { type TransferEnd, type TransferHost, transfer } from './transfer.ts';
import { takeTurn } from './turn.ts';

/** How often the figures of another process's fetch are looked at. */
const LOOK_MS = 500;

export interface FetchHost extends TransferHost {
  readonly random: () => number;
  /** Rejects with the reason of the signal. */
  readonly sleep: (ms: number) => Promise<void>;
  /** Something worth a line in the log. */
  readonly onNote: (tracker: Tracker, what: string) => void;
}

/** @throws WeightFault; the reason of the signal */
export async function fetchFile(host: FetchHost, url: string, tracker: Tracker): Promise<Lease> {
  const { cache, signal } = host;
  signal.throwIfAborted();
  const there = cache.lease(tracker.sha256);
  if (there !== undefined) return taken(tracker, there, host);
  const turn = await waitForTurn(host, tracker);
  try {
    return taken(tracker, cache.lease(tracker.sha256) ?? (await fetchAlone(host, url, tracker)), host);
  } finally {
    turn.release();
  }
}

function taken(tracker: Tracker, lease: Lease, host: FetchHost): Lease {
  tracker.sizeBytes = lease.sizeBytes;
  tracker.at(lease.sizeBytes, host.nowMs());
  tracker.phase = 'done';
  tracker.note = '';
  return lease;
}

async function waitForTurn(host: FetchHost, tracker: Tracker) {
  const look = (): void => {
    const { bytes, sizeBytes } = otherProgress(host.cache, tracker.sha256);
    tracker.sizeBytes = sizeBytes;
    tracker.at(bytes, host.nowMs());
  };
  let timer: NodeJS.Timeout | undefined;
  const onWait = (holderPid: number | undefined): void => {
    tracker.phase = 'waiting';
    tracker.note = holderPid === undefined ? 'another process fetches it' : `process ${holderPid} fetches it`;
    host.onNote(tracker, tracker.note);
    look();
    timer = setInterval(look, LOOK_MS);
  };
  try {
    return await takeTurn(host.cache, tracker.sha256, { signal: host.signal, onWait });
  } finally {
    clearInterval(timer);
  }
}

async function fetchAlone(host: FetchHost, url: string, tracker: Tracker): Promise<Lease> {
  tracker.phase = 'checking';
  tracker.note = '';
  const partial = await Partial.open(host.cache, tracker.sha256, host.signal);
  try {
    if (partial.bytes > 0) host.onNote(tracker, `goes on after ${partial.bytes} bytes`);
    await fill(host, url, partial, tracker);
    partial.publish();
  } catch (error) {
    const spoilt = error instanceof WeightFault && (error.code === 'HASH_MISMATCH' || error.code === 'DISK_FULL');
    if (spoilt) partial.discard();
    throw error;
  } finally {
    partial.close();
  }
  const lease = host.cache.lease(tracker.sha256);
  if (lease === undefined)
    throw new WeightFault('CACHE_FULL', 'another process removed the file as soon as it had come');
  return lease;
}

/** Attempts until the part has the hash. */
async function fill(host: FetchHost, url: string, partial: Partial, tracker: Tracker): Promise<void> {
  let attempts = firstAttempt();
  let secondTry = false;
  // It was whole when its process was killed, before it had its name.
  if (partial.bytes > 0 && partial.digest() === tracker.sha256) return;
  for (;;) {
    const end = await transfer(host, url, partial, tracker);
    if (end.kind === 'whole') {
      if (partial.digest() === tracker.sha256) return;
      if (end.proven || secondTry) throw mismatch(url, partial, tracker);
      secondTry = true;
      host.onNote(tracker, 'what has come is not the file: fetched once more from its start');
      partial.restart();
      continue;
    }
    const verdict = afterAttempt(attempts, end, host.random());
    if (verdict.kind !== 'again')
      throw givenUp(url, end, verdict.kind === 'asked too much' ? undefined : verdict.attempts);
    attempts = verdict.state;
    tracker.phase = 'pausing';
    tracker.note = `${end.reason}; the next attempt is in ${seconds(verdict.waitMs)}`;
    host.onNote(tracker, tracker.note);
    await host.sleep(verdict.waitMs);
  }
}

function mismatch(url: string, partial: Partial, { sha256 }: Tracker): WeightFault {
  const { problem } = checkModelFile(partial.path);
  const what = problem === undefined ? '' : `; what came ${problem}`;
  return new WeightFault(
    'HASH_MISMATCH',
    `${shownUrl(url)} gave ${partial.bytes} bytes with the sha256 ${partial.digest()}, not ${sha256}${what}`,
  );
}

function givenUp(url: string, end: Exclude<TransferEnd, { kind: 'whole' }>, attempts: number | undefined): WeightFault {
  const shown = shownUrl(url);
  if (end.kind === 'broken') {
    return new WeightFault('INTERRUPTED', `${shown}: ${end.reason}, after ${attempts} attempts that did not get on`);
  }
  if (attempts !== undefined)
    return new WeightFault('RATE_LIMITED', `${shown}: ${end.reason} to ${attempts} requests in a row`);
  const asked = `asks to wait for ${Math.ceil(end.askedS ?? 0)} s; ${WAIT_MAX_S} s at the most are waited`;
  return new WeightFault('RATE_LIMITED', `${shown}: ${end.reason} and ${asked}`);
}

function seconds(ms: number): string {
  return `${(ms / 1000).toFixed(ms < 10_000 ? 1 : 0)} s`;
}

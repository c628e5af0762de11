/**
 * Waking the other side: doorbells for ingress processes (a byte in a pipe, for event loops), futexes for instances (threads with nothing else to do).
 *
 * The supervisor owns the pipes and keeps both ends open, so that they outlive every other process. A bell that was rung and not yet heard is
 * not rung again. A lost wake-up would cost at most the cap of the wait (see SLEEP_MAX_US), never a hang.
 */
import { futexWait, futexWake } from '../system/futex.ts';
import { writeByte } from '../system/pipe.ts';
import { INGRESS_BELL, INGRESS_WAITING, INSTANCE_SLEEP } from './geometry.ts';
import type { Segment } from './segment.ts';

/** An idle instance looks at the queue at least this often. */
export const SLEEP_MAX_US = 250_000;

/** Rings the doorbells of ingress processes. `writeFds[slot]` is the write end of the slot's pipe. */
export class Doorbells {
  readonly #segment: Segment;
  readonly #writeFds: readonly number[];

  constructor(segment: Segment, writeFds: readonly number[]) {
    this.#segment = segment;
    this.#writeFds = writeFds;
  }

  ring(slot: number): void {
    const word = this.#segment.ingressLine(slot) + INGRESS_BELL;
    // Pairs with the store in hear(): whoever turns 0 into 1 owes the byte.
    if (Atomics.exchange(this.#segment.i32, word, 1) !== 0) return;
    const fd = this.#writeFds[slot];
    if (fd !== undefined) writeByte(fd);
  }

  /**
   * Writes a byte to every ingress, whatever its bell says. For the supervisor after a death: whoever turned the bell to 1 may have died before it
   * wrote the byte, and from then on nobody else would.
   */
  alarm(): void {
    for (let slot = 0; slot < this.#segment.geometry.ingressSlots; slot++) this.#ringAgain(slot);
  }

  /** Writes a byte to those whose bell is set, in case the ringer is stopped before its write, and to those who wait for space. */
  remind(): void {
    const { i32, geometry } = this.#segment;
    for (let slot = 0; slot < geometry.ingressSlots; slot++) {
      const line = this.#segment.ingressLine(slot);
      if (Atomics.load(i32, line + INGRESS_BELL) !== 0 || Atomics.load(i32, line + INGRESS_WAITING) !== 0) {
        this.#ringAgain(slot);
      }
    }
  }

  #ringAgain(slot: number): void {
    Atomics.store(this.#segment.i32, this.#segment.ingressLine(slot) + INGRESS_BELL, 1);
    const fd = this.#writeFds[slot];
    if (fd !== undefined) writeByte(fd);
  }

  /** Rings those who wait for space in the segment. */
  ringWaiting(): void {
    for (let slot = 0; slot < this.#segment.geometry.ingressSlots; slot++) {
      const line = this.#segment.ingressLine(slot);
      if (Atomics.load(this.#segment.i32, line + INGRESS_WAITING) !== 0) this.ring(slot);
    }
  }
}

/** Called by the ingress before it looks for results: from here on a new result rings again. */
export function hear(segment: Segment, slot: number): void {
  Atomics.store(segment.i32, segment.ingressLine(slot) + INGRESS_BELL, 0);
}

/** The ingress looks for results by itself until it calls hear(): nobody has to ring meanwhile. */
export function silence(segment: Segment, slot: number): void {
  Atomics.store(segment.i32, segment.ingressLine(slot) + INGRESS_BELL, 1);
}

/**
 * Wakes one sleeping instance, if there is one. Call after the work has been published.
 *
 * Pairs with sleep(): the instance sets its word and then looks for work, we publish work and then look at the word; one of us sees the other.
 */
export function wakeInstance(segment: Segment): void {
  const { instanceSlots } = segment.geometry;
  for (let slot = 0; slot < instanceSlots; slot++) {
    const word = segment.instanceLine(slot) + INSTANCE_SLEEP;
    if (Atomics.load(segment.i32, word) === 1 && Atomics.compareExchange(segment.i32, word, 1, 0) === 1) {
      futexWake(segment.address + word * 4, 1);
      return;
    }
  }
}

/** Wakes every instance: after a take-over, or to make them see their stop flags. */
export function wakeAllInstances(segment: Segment): void {
  for (let slot = 0; slot < segment.geometry.instanceSlots; slot++) {
    const word = segment.instanceLine(slot) + INSTANCE_SLEEP;
    Atomics.store(segment.i32, word, 0);
    futexWake(segment.address + word * 4, 1);
  }
}

/** Announces that the instance is about to sleep. It has to look for work once more before sleep(). */
export function prepareSleep(segment: Segment, slot: number): void {
  Atomics.store(segment.i32, segment.instanceLine(slot) + INSTANCE_SLEEP, 1);
}

export function cancelSleep(segment: Segment, slot: number): void {
  Atomics.store(segment.i32, segment.instanceLine(slot) + INSTANCE_SLEEP, 0);
}

/** Sleeps until woken or until the time is over. */
export function sleep(segment: Segment, slot: number, timeoutUs: number): void {
  const word = segment.instanceLine(slot) + INSTANCE_SLEEP;
  futexWait(segment.address + word * 4, 1, timeoutUs);
  Atomics.store(segment.i32, word, 0);
}

/** Lets a little time pass while another process finishes a copy or gives space back. */
export function pause(segment: Segment, slot: number, us: number): void {
  // The instance is awake, so its word is 0 and stays 0; wakeAllInstances() may end the pause early.
  futexWait(segment.address + (segment.instanceLine(slot) + INSTANCE_SLEEP) * 4, 0, us);
}

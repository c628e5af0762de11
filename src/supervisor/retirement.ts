/**
 * How versions leave: those that others have taken the place of, and those that are unloaded.
 *
 *     withdrawn ─▶ every ingress has heard ─▶ the answers to what it has ─▶ instances end ─▶ weights are let go ─▶ queue is given back
 *
 * Answers are waited for as long as a drain may take; what is still in the queue then is failed. The queue itself stays until no ingress holds a request to it any more:
 * one whose body comes slowly would be lost in it otherwise. A run that goes on is waited for, since its own limit ends it.
 */
import { BatchportError } from '../config/errors.ts';
import type { Logger } from '../config/log.ts';
import { readIngress } from '../metrics/counters.ts';
import { counterIndex } from '../queue/geometry.ts';
import type { DeviceChild } from './device-child.ts';
import type { IngressChild } from './ingress-child.ts';
import type { Loads } from './loads.ts';
import type { ServedVersion } from './served-version.ts';

const LOOK_MS = 5;
/** For what nobody waits for. */
const SLOW_LOOK_MS = 100;

export interface RetirementOptions {
  /** All that are kept; changed in place. */
  readonly versions: ServedVersion[];
  readonly devices: readonly DeviceChild[];
  readonly ingresses: readonly IngressChild[];
  readonly loads: Loads;
  readonly drainTimeoutS: number;
  readonly log: Logger;
  /** Tells everybody the state of the models. */
  readonly onChange: () => void;
}

export class Retirement {
  readonly #options: RetirementOptions;
  #stopped = false;

  constructor(options: RetirementOptions) {
    this.#options = options;
  }

  /** The server stops: nothing is waited for any more. */
  stop(): void {
    this.#stopped = true;
  }

  /** Takes versions out of service; settled when their weights are gone. They stay in the list. */
  async release(versions: readonly ServedVersion[]): Promise<void> {
    const { ingresses, onChange, drainTimeoutS, log, loads } = this.#options;
    for (const version of versions) version.withdraw();
    onChange();
    const heard = ingresses.map((ingress) => ingress.announced);
    const limitMs = performance.now() + drainTimeoutS * 1000;
    await this.until(
      () =>
        performance.now() > limitMs ||
        (ingresses.every((ingress, n) => ingress.hasHeard(heard[n]!)) && versions.every(isAnswered)),
    );
    for (const version of versions) {
      if (isAnswered(version)) continue;
      log.warn({ model: version.key }, 'a model is let go though requests to it have not been answered');
    }
    await this.letGo(versions);
    for (const version of versions) {
      version.end();
      loads.forget(version);
    }
  }

  /** Ends the instances of versions, after the batch at hand, and releases their weights; their queues stay as they are. */
  async letGo(versions: readonly ServedVersion[]): Promise<void> {
    await this.until(() => {
      for (const version of versions) this.#stopInstances(version);
      return versions.every(({ placements }) =>
        placements.every(({ state }) => state === 'idle' || state === 'failed'),
      );
    });
  }

  /** Releases versions, and forgets them. */
  async retire(versions: readonly ServedVersion[]): Promise<void> {
    if (versions.length === 0) return;
    await this.release(versions);
    for (const version of versions) this.drop(version);
  }

  /** Forgets one that no device serves. */
  drop(version: ServedVersion): void {
    const { versions, loads, onChange } = this.#options;
    version.end();
    loads.forget(version);
    this.closeWhenAnswered(version, () => {
      const at = versions.indexOf(version);
      if (at >= 0) versions.splice(at, 1);
      onChange();
    });
  }

  /** Gives the queue of a version that has ended back, once nobody holds a request to it. */
  closeWhenAnswered(version: ServedVersion, then = (): void => {}): void {
    if (this.#stopped) return;
    if (isAnswered(version)) {
      version.close();
      then();
    } else setTimeout(() => this.closeWhenAnswered(version, then), SLOW_LOOK_MS).unref();
  }

  /** @throws DRAINING when the server stops meanwhile */
  async until(condition: () => boolean): Promise<void> {
    while (!condition()) {
      if (this.#stopped) throw new BatchportError('DRAINING', 'The server is shutting down.');
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }

  /** Loads that wait are given up, and one that goes on is released when it is over. */
  #stopInstances(version: ServedVersion): void {
    for (const placement of version.placements) {
      if (placement.state === 'waiting') placement.state = 'idle';
      if (placement.state !== 'serving' || placement.starting.size > 0) continue;
      this.#options.devices.find(({ name }) => name === placement.device)?.unload(version);
    }
  }
}

/** No ingress holds a request to it. */
function isAnswered({ segment }: ServedVersion): boolean {
  if (segment === undefined) return true;
  const { ingressSlots } = segment.geometry;
  for (let ingress = 0; ingress < ingressSlots; ingress++) {
    if (readIngress(segment.f64, counterIndex(segment.geometry, { ingress })).inFlight > 0) return false;
  }
  return true;
}

/**
 * What every ingress process has to know beside the models: regions of shared memory, what is logged. Told to all of them at a change, which is done when all have it.
 */

import { BatchportError } from '../config/errors.ts';
import type { LogSettings } from '../config/log-settings.ts';
import type { SharedRegion, ToIngress } from '../protocol/control.ts';
import type { IngressChild } from './ingress-child.ts';

/** How often it is looked whether all have heard. */
const LOOK_MS = 2;

export class CommonState {
  readonly #ingresses: readonly IngressChild[];
  regions: readonly SharedRegion[] = [];
  logging: LogSettings;
  #number = 0;
  #closed = false;

  constructor(ingresses: readonly IngressChild[], logging: LogSettings) {
    this.#ingresses = ingresses;
    this.logging = logging;
  }

  message(): Extract<ToIngress, { type: 'common' }> {
    return { type: 'common', number: this.#number, regions: this.regions, logging: this.logging };
  }

  /**
   * Tells all ingress processes what there is now; settled when they have it, and nothing older.
   *
   * @returns serials of the regions that one of them could not open
   * @throws DRAINING
   */
  async tell(): Promise<readonly number[]> {
    const number = ++this.#number;
    const message = this.message();
    for (const ingress of this.#ingresses) ingress.announceCommon(message);
    while (!this.#ingresses.every((ingress) => ingress.hasCommon(number))) {
      // They are being ended, with whatever they have.
      if (this.#closed) throw new BatchportError('DRAINING', 'The server is shutting down.');
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return this.#ingresses.flatMap(({ missingRegions }) => missingRegions);
  }

  close(): void {
    this.#closed = true;
  }
}

/**
 * A device process seen from the supervisor: its orders and their answers, and what happens when it dies: its batches are given to others, its models have to be
 * loaded again.
 */
import type { Logger } from '../config/log.ts';
import type { Batching, FromDevice, LoadOrder, ToDevice } from '../protocol/control.ts';
import { reclaimInstance, stopInstance } from '../queue/reclaim.ts';
import { childEnvironment, type Device } from '../runtime/device-name.ts';
import { availableCpu } from '../system/cpu.ts';
import type { ModelSignature } from '../tensor/signature.ts';
import { ChildProcess, describeExit, type ExitRecord } from './child-process.ts';
import type { Loads } from './loads.ts';
import type { ServedVersion } from './served-version.ts';

export type LoadOutcome =
  | {
      readonly kind: 'loaded';
      readonly signature: ModelSignature;
      readonly batching: Batching;
      readonly loadMs: number;
    }
  | { readonly kind: 'failed'; readonly message: string }
  | { readonly kind: 'died' };

export interface DeviceChildOptions {
  readonly bellWriteFds: readonly number[];
  readonly instancesMax: number;
  readonly deviceCount: number;
  readonly logLevel: string;
  readonly log: Logger;
  readonly loads: Loads;
  readonly versions: readonly ServedVersion[];
  readonly onRefused: (message: string) => void;
  readonly onChange: () => void;
}

export class DeviceChild {
  readonly name: string;
  readonly device: Device;
  readonly process: ChildProcess<FromDevice, ToDevice>;
  readonly #options: DeviceChildOptions;
  #available = false;
  #onLoad: ((outcome: LoadOutcome) => void) | undefined;
  #onServing: ((served: boolean) => void) | undefined;

  constructor(name: string, device: Device, options: DeviceChildOptions) {
    this.name = name;
    this.device = device;
    this.#options = options;
    this.process = new ChildProcess<FromDevice, ToDevice>({
      role: 'device',
      entry: new URL('../../workers/device.js', import.meta.url),
      env: childEnvironment(device),
      execArgv: [],
      inherit: undefined,
      onStart: () => {},
      onMessage: (message) => this.#handle(message),
      onExit: (exit) => this.#exited(exit),
    });
  }

  start(): void {
    this.process.start();
  }

  /** Whether the process has checked its device and takes orders. */
  get available(): boolean {
    return this.#available;
  }

  /** Whether nothing is left to load. */
  get settled(): boolean {
    return this.#placements().every(([, { state }]) => state === 'serving' || state === 'failed');
  }

  #placements() {
    return this.#options.versions.flatMap((version) => {
      const placement = version.placements.find(({ device }) => device === this.name);
      return placement === undefined ? [] : [[version, placement] as const];
    });
  }

  #handle(message: FromDevice): void {
    switch (message.type) {
      case 'hello': {
        const { bellWriteFds, instancesMax, logLevel } = this.#options;
        this.process.send({
          type: 'init',
          supervisorPid: process.pid,
          device: this.device.text,
          bellFds: bellWriteFds,
          instancesMax,
          logLevel,
        });
        return;
      }
      case 'ready':
        this.#available = true;
        this.#options.loads.enqueueAll(this);
        return;
      case 'refused':
        this.#options.onRefused(message.message);
        return;
      case 'loaded': {
        const { signature, batching, loadMs } = message;
        this.#settleLoad({ kind: 'loaded', signature, batching, loadMs });
        return;
      }
      case 'load-failed':
        this.#settleLoad({ kind: 'failed', message: message.message });
        return;
      case 'serving': {
        const [, placement] = this.#placements().find(([{ key }]) => key === message.model) ?? [];
        for (const slot of message.slots) {
          placement?.starting.delete(slot);
          placement?.running.add(slot);
        }
        this.#settleServing(true);
        this.#options.onChange();
        return;
      }
      case 'instance-stopped': {
        const [version, placement] = this.#placements().find(([{ key }]) => key === message.model) ?? [];
        placement?.running.delete(message.slot);
        if (version?.segment !== undefined) stopInstance(version.segment, message.slot, false);
        return;
      }
      case 'unloaded':
        return;
    }
  }

  #settleLoad(outcome: LoadOutcome): void {
    const settle = this.#onLoad;
    this.#onLoad = undefined;
    settle?.(outcome);
  }

  #settleServing(served: boolean): void {
    const settle = this.#onServing;
    this.#onServing = undefined;
    settle?.(served);
  }

  /** Loads a version. One at a time; see Loads. `known`: what earlier trials found about batching. */
  load(version: ServedVersion, known: Batching | undefined): Promise<LoadOutcome> {
    return new Promise((resolve) => {
      this.#onLoad = resolve;
      this.process.send({
        type: 'load',
        model: version.key,
        path: version.path,
        order: this.#loadOrder(version),
        ...(version.config.maxBatchSize === undefined ? {} : { maxBatchSize: version.config.maxBatchSize }),
        ...(known === undefined ? {} : { known }),
      });
    });
  }

  #loadOrder({ config }: ServedVersion): LoadOrder {
    const { intraOpThreads, graphOptimization, session, provider } = config.runtime;
    const cores = this.device.cores?.length ?? Number.POSITIVE_INFINITY;
    // Threads of all device processes together are no more than the processor time there is.
    const share = Math.floor(availableCpu().threads / this.#options.deviceCount / config.instances.max);
    return {
      provider: this.device.kind,
      // The device is the only one of its kind that its process sees, see childEnvironment().
      deviceId: 0,
      intraOpThreads: intraOpThreads ?? Math.max(1, Math.min(cores, share)),
      graphOptimization,
      sessionConfig: session,
      providerOptions: provider,
      ...(config.memoryBudgetBytes === undefined ? {} : { arenaMaxBytes: config.memoryBudgetBytes }),
    };
  }

  /** Starts instances of a loaded version. False when the process died before they ran. */
  serve(version: ServedVersion, slots: readonly number[]): Promise<boolean> {
    const { segment } = version;
    if (segment === undefined) throw new Error('a version without a queue cannot be served: this is a bug');
    return new Promise((resolve) => {
      this.#onServing = resolve;
      this.#startInstances(version, slots);
    });
  }

  #startInstances(version: ServedVersion, slots: readonly number[]): void {
    this.process.send({
      type: 'serve',
      model: version.key,
      queue: version.segment!.reference(),
      slots,
      maxQueueDelayUs: version.config.maxQueueDelayUs,
    });
  }

  /** Brings the number of running instances of a version to `target`, as far as its slots go. */
  scale(version: ServedVersion, target: number): void {
    const [, placement] = this.#placements().find(([one]) => one === version) ?? [];
    if (placement === undefined || placement.state !== 'serving' || version.segment === undefined) return;
    if (target > placement.running.size) {
      const free = placement.slots.filter((slot) => !placement.running.has(slot) && !placement.starting.has(slot));
      const slots = free.slice(0, target - placement.running.size - placement.starting.size);
      for (const slot of slots) placement.starting.add(slot);
      if (slots.length > 0) this.#startInstances(version, slots);
    } else if (target < placement.running.size) {
      for (const slot of [...placement.running].slice(target)) stopInstance(version.segment, slot, true);
    }
  }

  #exited(exit: ExitRecord): void {
    const how = describeExit(exit);
    this.#available = false;
    let requeued = 0;
    let lost = 0;
    for (const [version, placement] of this.#placements()) {
      placement.running.clear();
      placement.starting.clear();
      if (version.segment !== undefined && version.bells !== undefined) {
        for (const slot of placement.slots) {
          const { requeuedRows, lostRows } = reclaimInstance(version.segment, version.bells, slot);
          requeued += requeuedRows;
          lost += lostRows;
          version.requeuedRows += requeuedRows;
          version.lostRows += lostRows;
        }
      }
      if (placement.state === 'failed') continue;
      placement.state = 'waiting';
      const { state } = version.record;
      if (version.servingDevices.length === 0 && (state === 'READY' || state === 'LOADING')) {
        version.move('lost', `its device process ended (${how}) and is being restarted`);
      }
    }
    if (exit.restartInMs !== undefined) {
      this.#options.log.error(
        {
          device: this.name,
          childPid: exit.pid,
          how,
          requeuedRows: requeued,
          lostRows: lost,
          restartInMs: Math.round(exit.restartInMs),
        },
        'device process ended',
      );
    }
    this.#settleLoad({ kind: 'died' });
    this.#settleServing(false);
    this.#options.onChange();
  }

  /** Stops all instances after their batch and ends the process; kills it after the grace period. */
  async stop(graceMs: number): Promise<void> {
    this.process.stopping();
    for (const [version, placement] of this.#placements()) {
      if (version.segment === undefined) continue;
      for (const slot of placement.slots) stopInstance(version.segment, slot, true);
    }
    this.process.send({ type: 'stop' });
    await this.process.ended(graceMs);
  }
}

/**
 * Snapshots as a supervisor would take them, from counters in plain memory that tests write through the counters' own classes.
 */
import {
  COUNTER_WORDS,
  IngressCounters,
  InstanceCounters,
  OUTCOMES,
  readIngress,
  readInstance,
  STAGES,
} from '../../../src/metrics/counters.ts';
import type {
  DeviceMemorySnapshot,
  InstanceSnapshot,
  MetricsSnapshot,
  ModelSnapshot,
  ProcessSnapshot,
} from '../../../src/metrics/snapshot.ts';
import type { Random } from '../../support/random.ts';

/** Slots of one model version: two for ingress processes, and two for each of its devices. */
export class FakeModel {
  readonly ingress: readonly IngressCounters[];
  readonly instances: readonly InstanceCounters[];
  readonly devices: readonly string[];
  readonly #name: string;
  readonly #words: Float64Array;

  constructor(name: string, devices: readonly string[] = ['cpu']) {
    this.#name = name;
    this.devices = devices;
    const slots = 2 + 2 * devices.length;
    const words = new Float64Array(slots * COUNTER_WORDS);
    this.#words = words;
    this.ingress = [0, 1].map((slot) => new IngressCounters(words, slot * COUNTER_WORDS));
    this.instances = devices.flatMap((_, n) =>
      [2 + 2 * n, 3 + 2 * n].map((slot) => new InstanceCounters(words, slot * COUNTER_WORDS)),
    );
  }

  /** One random event in one of the slots. */
  countSomething(random: Random): void {
    const ingress = random.pick(this.ingress);
    const instance = random.pick(this.instances);
    random.pick([
      () => ingress.outcome(random.int(0, OUTCOMES.length - 1)),
      () => ingress.received(random.int(1, 5), random.int(1, 1e6)),
      () => ingress.sent(random.int(1, 1e6)),
      () => ingress.inFlight(random.int(0, 100)),
      () => ingress.cacheHit(random.int(1, 100)),
      () => ingress.cacheMiss(random.int(1, 100)),
      () => ingress.cacheEvicted(),
      () => ingress.cacheHolds(random.int(0, 100), random.int(0, 1e6)),
      () => ingress.stage(random.int(0, STAGES.length - 1), 10 ** (1 + random.float() * 6.5)),
      () => instance.batch(random.int(1, 5000), random.int(1, 1e6), 0),
      () => instance.failure(),
      () => instance.split(),
      () => instance.outOfMemory(),
      () => instance.skipped(),
      () => instance.late(random.int(1, 9)),
      () => instance.gaveBack(),
    ])();
  }

  snapshot(changes: Partial<ModelSnapshot> = {}, threads: Partial<InstanceSnapshot> = {}): ModelSnapshot {
    return {
      name: this.#name,
      version: '1',
      state: 'READY',
      maxBatchSize: 32,
      caches: true,
      ingress: [0, 1].map((slot) => readIngress(this.#words, slot * COUNTER_WORDS)),
      instances: this.instances.map((_, slot) => ({
        device: this.devices[slot >> 1]!,
        slot,
        running: true,
        executingForS: 0,
        cost: { baseUs: 1000, rowUs: 50, errorRatio: 0.1 },
        ...threads,
        reading: readInstance(this.#words, (2 + slot) * COUNTER_WORDS),
      })),
      queue: {
        slabs: { free: 1, filling: 2, open: 3, sealed: 4, running: 5, done: 6, freeing: 7 },
        queuedRows: 8,
        runningRows: 9,
        committedBytes: 1 << 20,
        usedBytes: 1 << 19,
      },
      requeuedRows: 0,
      lostRows: 0,
      ...changes,
    };
  }
}

/** Each device of the models has an account, in which all that can be told is told. */
export function ofModels(...models: ModelSnapshot[]): MetricsSnapshot {
  const devices = [...new Set(models.flatMap(({ instances }) => instances.map(({ device }) => device)))];
  const memory = devices.map((device) => fakeMemory(device, models));
  return { version: '1.2.3', ready: true, models, processes: [], memory };
}

function fakeMemory(device: string, models: readonly ModelSnapshot[]): DeviceMemorySnapshot {
  return {
    device,
    totalBytes: 1000,
    source: 'the test',
    reserveBytes: 100,
    othersBytes: 50,
    freeBytes: 200,
    usedBytes: 700,
    processBytes: 600,
    models: models.map(({ name, version }) => ({
      model: name,
      version,
      weightsBytes: 30,
      weightsFrom: 'measured',
      shareBytes: 60,
      peakBytes: 20,
      peakRows: 32,
    })),
  };
}

export function ofProcesses(...processes: ProcessSnapshot[]): MetricsSnapshot {
  return { version: '1.2.3', ready: true, models: [], processes, memory: [] };
}

export function fakeProcess(changes: Partial<ProcessSnapshot>): ProcessSnapshot {
  return {
    role: 'ingress',
    device: undefined,
    slot: undefined,
    state: 'ready',
    restarts: 0,
    uptimeS: 1,
    rssBytes: 4096,
    exits: {},
    ...changes,
  };
}

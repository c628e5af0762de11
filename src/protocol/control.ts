/**
 * Messages between the supervisor and its children, over Node's IPC channel: small, plain data. Tensors never travel here.
 */
import type { LogSettings } from '../config/log-settings.ts';
import type { OutputConfig, TransformConfig, WarmUpConfig } from '../config/model-config.ts';
import type { ModelControlMode } from '../config/settings.ts';
import type { QueueShape } from '../queue/geometry.ts';
import type { KeyPoints, MemoryPoint } from '../scheduler/memory-fit.ts';
import type { ModelSignature } from '../tensor/signature.ts';

/** Names one served version of a model on this host: `name` + '/' + version. */
export type ModelKey = string;

export function modelKey(name: string, version: string): ModelKey {
  return `${name}/${version}`;
}

/** How a model is to be loaded on a device. */
export interface LoadOrder {
  readonly provider: 'cpu' | 'cuda' | 'tensorrt' | 'webgpu';
  readonly deviceId: number;
  readonly intraOpThreads: number;
  readonly arenaMaxBytes?: number;
  readonly graphOptimization?: 'disable' | 'basic' | 'extended' | 'all';
  readonly sessionConfig?: Record<string, string>;
  readonly providerOptions?: Record<string, string>;
}

/** Runs that every instance makes before it takes batches. */
export interface WarmUpOrder {
  readonly runs: readonly WarmUpConfig[];
  /** Absolute; of the files that these name. */
  readonly directory: string;
}

/** Whether rows of different requests may share a batch, and why (not). */
export interface Batching {
  /** Most rows of a batch; 0 when requests run alone. */
  readonly maxBatchSize: number;
  readonly reason: string;
  /** The trial found no memory for its runs: one with more of it may find otherwise. */
  readonly provisional?: boolean;
}

/** Whether a model took one row of made-up inputs, with which every instance proves itself before it takes batches. */
export interface CanaryReport {
  readonly found: boolean;
  /** One sentence. */
  readonly detail: string;
}

/** What a load found out about memory. */
export interface MemoryReport {
  /** Taken by the weights on the device; undefined where its allocator tells nothing. */
  readonly weightsBytes: number | undefined;
  /** Part of the weights that lies in no arena: those that were brought into another form for the processor. */
  readonly outsideBytes: number;
  /** Most that the load took of the host's memory at a time; undefined where other models ran meanwhile, or nobody tells. */
  readonly loadPeakBytes: number | undefined;
  /** Whether all runs have rows of one shape. */
  readonly fixedShape: boolean;
  /** What runs take: measured by this load, or as it was told. */
  readonly keys: readonly KeyPoints[];
}

/** The shared memory of a model and the ends of the doorbell pipes, as descriptors of the supervisor. */
export interface QueueReference {
  readonly pid: number;
  readonly fd: number;
  readonly shape: QueueShape;
}

/** Text files in a memory file, as a descriptor of the supervisor, one behind the other. */
export interface TextsReference {
  readonly pid: number;
  readonly fd: number;
  readonly files: readonly { readonly name: string; readonly bytes: number }[];
}

export type ToDevice =
  | {
      readonly type: 'init';
      readonly supervisorPid: number;
      readonly device: string;
      /** Of the supervisor: write ends of the ingress doorbells by slot. */
      readonly bellFds: readonly number[];
      readonly instancesMax: number;
      readonly logLevel: string;
    }
  | {
      readonly type: 'load';
      readonly model: ModelKey;
      readonly path: string;
      readonly order: LoadOrder;
      /** Rows asked for by the configuration; undefined: find out. */
      readonly maxBatchSize?: number;
      /** Found out before, by another device or an earlier life of this one. */
      readonly known?: Batching;
      /** What runs of it are known to take; undefined: find out. */
      readonly measured?: readonly KeyPoints[];
      /** Sizes of the model's files, and what of its weights is known to lie outside of the arena, for which the arena's limit has been lowered. */
      readonly filesBytes: number;
      readonly outsideBytes: number;
      /** The arena's limit is what its runs were thought to take, and would be higher the next time if they took more. */
      readonly canGrow: boolean;
      /** Longest time of one run, in trials too. */
      readonly runTimeoutMs: number;
    }
  | {
      readonly type: 'serve';
      readonly model: ModelKey;
      readonly queue: QueueReference;
      readonly slots: readonly number[];
      readonly maxQueueDelayUs: number;
      readonly runTimeoutMs: number;
      readonly warmUps: WarmUpOrder;
      /** What its runs may take, where its arena has no limit that bounds them; undefined: as much as they like. */
      readonly roomBytes?: number;
      /** Time (µs, on the clock of the host) from which on the process may be given up for an arena that is of no use any more. */
      readonly recycleFromUs: number;
    }
  /** The run that an instance has been executing for longer than its limit is to end. */
  | { readonly type: 'cancel'; readonly model: ModelKey; readonly slot: number; readonly olderThanMs: number }
  | { readonly type: 'unload'; readonly model: ModelKey }
  | { readonly type: 'logging'; readonly settings: LogSettings }
  /** Ends the process, once the instances have ended, which are told so through their stop words. */
  | { readonly type: 'stop'; readonly exitCode: number };

export type FromDevice =
  | { readonly type: 'hello' }
  /** The event loop turns. */
  | { readonly type: 'alive' }
  | { readonly type: 'ready' }
  | { readonly type: 'refused'; readonly message: string }
  | {
      readonly type: 'loaded';
      readonly model: ModelKey;
      readonly signature: ModelSignature;
      readonly batching: Batching;
      readonly loadMs: number;
      readonly canary: CanaryReport;
      readonly memory: MemoryReport;
    }
  /** A run took more than any of its shape before. */
  | {
      readonly type: 'measured';
      readonly model: ModelKey;
      readonly key: string;
      readonly elements: number;
      readonly point: MemoryPoint;
    }
  /** An instance's arena is of no use any more, and its batch not finished: the process has to be started afresh. */
  | { readonly type: 'poisoned'; readonly model: ModelKey; readonly slot: number; readonly reason: string }
  /** An instance's canary runs fail: the same. */
  | { readonly type: 'unsound'; readonly model: ModelKey; readonly slot: number; readonly reason: string }
  /** `memory`: for want of it, and what the weights take where that was found out. */
  | {
      readonly type: 'load-failed';
      readonly model: ModelKey;
      readonly message: string;
      readonly memory?: { readonly weightsBytes: number | undefined };
    }
  /** These instances have made their canary run and take batches. */
  | { readonly type: 'serving'; readonly model: ModelKey; readonly slots: readonly number[] }
  /** One did not get so far. */
  | { readonly type: 'serve-failed'; readonly model: ModelKey; readonly slot: number; readonly message: string }
  | { readonly type: 'instance-stopped'; readonly model: ModelKey; readonly slot: number }
  | { readonly type: 'unloaded'; readonly model: ModelKey };

/** A served version as an ingress needs to know it. */
export interface ServedModel {
  readonly name: string;
  readonly version: string;
  readonly state: string;
  /** Why it is not READY; of one that is, what there is to say. */
  readonly reason: string;
  /** Differs between two of the same number, of which one takes the place of the other. */
  readonly incarnation: number;
  /** Whether it is meant to be served: one that is unloaded on command, or has not been loaded, is listed and not known to requests. */
  readonly wanted: boolean;
  /** Whether requests may enter its queue: true also while its devices are being restarted. */
  readonly accepting: boolean;
  /** Undefined until the model has been loaded once. */
  readonly serving:
    | {
        readonly signature: ModelSignature;
        readonly batching: Batching;
        readonly queue: QueueReference;
        readonly maxRows: number;
        /** Whether a request may have more rows than a batch. */
        readonly splits: boolean;
        readonly sloMs: number | undefined;
        /** Levels of priority of requests, and that of those that name none; undefined where all are the same. */
        readonly priorities: { readonly levels: number; readonly default: number } | undefined;
        /** Batches wait for rows to fill them. */
        readonly collects: boolean;
        /** Of each ingress process; undefined for none. */
        readonly responseCache: { readonly maxBytes: number; readonly ttlS: number | undefined } | undefined;
        /** About outputs, and the texts that this names. */
        readonly outputs: readonly OutputConfig[];
        readonly texts: TextsReference | undefined;
        /** With the absolute path of its module. */
        readonly transform: (TransformConfig & { readonly file: string }) | undefined;
        readonly devices: readonly string[];
      }
    | undefined;
  /** The configuration in force, for GET …/config. */
  readonly config: Readonly<Record<string, unknown>>;
}

export type ToIngress =
  | {
      readonly type: 'init';
      readonly supervisorPid: number;
      readonly slot: number;
      readonly listenFd: number;
      /** Undefined when gRPC is off. */
      readonly grpcListenFd: number | undefined;
      readonly bellFd: number;
      readonly bellFds: readonly number[];
      readonly settings: IngressSettings;
    }
  | {
      readonly type: 'models';
      /** Rises; to be told back when it has been taken over. */
      readonly number: number;
      readonly ready: boolean;
      readonly reason: string;
      readonly models: readonly ServedModel[];
    }
  /** What it has to know beside the models. */
  | {
      readonly type: 'common';
      /** Rises; to be told back when it has been taken over. */
      readonly number: number;
      /** All regions of shared memory that clients have registered. */
      readonly regions: readonly SharedRegion[];
      readonly logging: LogSettings;
    }
  /** What came of a ControlRequest. */
  | {
      readonly type: 'controlled';
      readonly id: number;
      readonly error?: { readonly code: string; readonly message: string };
    }
  | { readonly type: 'drain'; readonly timeoutMs: number };

/** Asked by a client of an ingress. */
export type ControlRequest =
  | {
      readonly action: 'load' | 'unload';
      readonly model: string;
      /** Text of a config.json, instead of the model's own. */
      readonly config?: string;
    }
  | { readonly action: 'register-region'; readonly region: RegionRequest }
  /** Without a name all of them. */
  | { readonly action: 'unregister-region'; readonly name?: string }
  /** By the names of the protocol, unchecked. */
  | { readonly action: 'change-logging'; readonly changes: Readonly<Record<string, unknown>> };

/** A region of shared memory, as a client registers it. */
export interface RegionRequest {
  readonly name: string;
  /** Of the file, as shm_open takes it. */
  readonly key: string;
  /** Where in the file it begins. */
  readonly offset: number;
  readonly byteSize: number;
}

export interface SharedRegion extends RegionRequest {
  /** Differs between two of one name, of which one came after the other. */
  readonly serial: number;
  /** Of the supervisor, open for reading and writing. */
  readonly fd: number;
  /** Which file that is. */
  readonly dev: number;
  readonly ino: number;
}

export interface IngressSettings {
  readonly maxBodyBytes: number;
  readonly maxInflightBytes: number;
  readonly headersTimeoutS: number;
  readonly bodyIdleTimeoutS: number;
  readonly keepAliveTimeoutS: number;
  readonly logLevel: string;
  readonly modelControlMode: ModelControlMode;
  readonly systemSharedMemory: boolean;
}

export type FromIngress =
  | { readonly type: 'hello' }
  /** The event loop turns. */
  | { readonly type: 'alive' }
  | { readonly type: 'listening' }
  /** The models of this number are known, and no request goes to any others from now on. */
  | { readonly type: 'models-taken'; readonly number: number }
  /** The regions of this number are open, but for those of `missing`, by their serials; no others are any more. */
  | { readonly type: 'common-taken'; readonly number: number; readonly missing: readonly number[] }
  | { readonly type: 'control'; readonly id: number; readonly request: ControlRequest }
  | { readonly type: 'drained'; readonly unanswered: number };

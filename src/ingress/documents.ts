/**
 * The answers that are documents: health, metadata, configuration, the repository index. Made from what the supervisor last announced.
 */
import { BatchportError } from '../config/errors.ts';
import { type LogSettings, logDocument, logSettingsOf } from '../config/log-settings.ts';
import type { LogLevel } from '../config/settings.ts';
import { PACKAGE_NAME, PACKAGE_VERSION } from '../config/version.ts';
import { modelMetadata, serverMetadata } from '../protocol/metadata.ts';
import { openApiDocument } from '../protocol/openapi.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import { isReady, type ModelEntry, ModelTable } from './model-table.ts';
import type { RemoteControl } from './remote-control.ts';
import type { Route } from './router.ts';
import { interfaceOf } from './served-model.ts';
import type { SharedRegions } from './shared-regions.ts';
import { statisticsOf } from './statistics.ts';

const PLATFORM = 'onnxruntime_onnx';
/** Extensions of the protocol that the server passes tests for. */
const EXTENSIONS = [
  'binary_tensor_data',
  'classification',
  'logging',
  'model_configuration',
  'schedule_policy',
  'statistics',
] as const;
/** And those that it has where models are loaded on command. */
const CONTROL_EXTENSIONS = ['model_repository', 'model_repository(unload_dependents)'] as const;

export interface Document {
  readonly status: number;
  readonly document: unknown;
}

export class Documents {
  readonly #models: ModelTable;
  readonly #extensions: readonly string[];
  /** What changes the documents. */
  readonly control: RemoteControl;
  readonly regions: SharedRegions;
  /** What is logged. */
  logging: LogSettings;
  /** Whether the server as a whole is ready, and why not. */
  ready = false;
  reason = 'starting';

  constructor(models: ModelTable, control: RemoteControl, regions: SharedRegions, logLevel: LogLevel) {
    this.logging = logSettingsOf(logLevel);
    this.#models = models;
    this.control = control;
    this.regions = regions;
    this.#extensions = [
      ...EXTENSIONS,
      ...(control.open ? CONTROL_EXTENSIONS : []),
      ...(regions.enabled ? ['system_shared_memory'] : []),
    ];
  }

  /** @throws BatchportError where the answer is an error. */
  answer(route: Route): Document {
    switch (route.endpoint) {
      case 'serverMetadata':
        return ok(serverMetadata(PACKAGE_NAME, PACKAGE_VERSION, this.#extensions));
      case 'live':
        return ok({ live: true });
      case 'ready':
        return {
          status: this.ready ? 200 : 503,
          document: this.ready ? { ready: true } : { ready: false, error: this.reason },
        };
      case 'modelMetadata':
        return ok(this.#metadata(this.#models.find(route.model, route.version)));
      case 'modelReady':
        return this.#modelReady(this.#models.look(route.model, route.version));
      case 'modelConfig':
        return ok(this.#config(this.#models.find(route.model, route.version)));
      case 'statistics':
        return ok({ model_stats: [...this.#models.all()].filter(isWanted).map(statisticsOf) });
      case 'modelStatistics':
        return ok({ model_stats: this.#statistics(route) });
      case 'repositoryIndex':
        return ok(this.index(Buffer.alloc(0)));
      case 'systemRegions':
      case 'systemRegion':
        return ok(this.regions.status(route.region));
      case 'openApi':
        return ok(this.#openApi());
      case 'logging':
        return ok(logDocument(this.logging));
      case 'cudaRegions':
        return ok([]);
      case 'cudaRegion':
      case 'cudaRegister':
        throw noCudaRegions();
      case 'repositoryLoad':
      case 'repositoryUnload':
      case 'systemRegister':
      case 'systemUnregister':
      case 'systemUnregisterAll':
      case 'cudaUnregister':
      case 'cudaUnregisterAll':
      case 'infer':
        throw new Error(`${route.endpoint} is not a document: this is a bug`);
    }
  }

  /**
   * The repository index. The body may be empty, or an object whose `ready` leaves out what is not ready.
   *
   * @throws BAD_REQUEST
   */
  index(body: Buffer): unknown[] {
    return this.entries(wantsReady(body));
  }

  /** Entries of the repository index. */
  entries(readyOnly: boolean): IndexEntry[] {
    const entries = [...this.#models.all()];
    return (readyOnly ? entries.filter(isReady) : entries).map(indexEntry);
  }

  #openApi() {
    const models = [...new Set([...this.#models.all()].filter(isWanted).map(({ name }) => name))].map((name) => {
      const { announced } = this.#models.look(name, undefined);
      const { serving } = announced;
      const versions = this.#models.versions(name).filter(isWanted);
      return {
        name,
        versions: versions.map(({ version }) => version),
        contract: serving === undefined ? undefined : interfaceOf(announced, serving),
      };
    });
    return openApiDocument({
      name: PACKAGE_NAME,
      version: PACKAGE_VERSION,
      models,
      control: this.control.open,
      sharedMemory: this.regions.enabled,
    });
  }

  #modelReady(entry: ModelEntry): Document {
    const ready = isReady(entry);
    const { reason, state } = entry.announced;
    return {
      status: ready ? 200 : 503,
      document: { name: entry.name, version: entry.version, ready, ...(ready ? {} : { error: reason || state }) },
    };
  }

  /** Of one version; without one, of all that the model has. */
  #statistics({ model, version }: Route) {
    const entry = this.#models.find(model, version);
    return (version === undefined ? this.#models.versions(model).filter(isWanted) : [entry]).map(statisticsOf);
  }

  #metadata(entry: ModelEntry) {
    const { serving } = entry.announced;
    if (serving === undefined) {
      ModelTable.serving(entry); // throws why
      throw new BatchportError('NOT_READY', 'The model has not been loaded.');
    }
    const versions = this.#models
      .versions(entry.name)
      .filter(isWanted)
      .map(({ version }) => version);
    const contract = interfaceOf(entry.announced, serving);
    return {
      ...modelMetadata(contract, versions, PLATFORM),
      // Where it really runs, as parameters that clients which do not know them pass over.
      parameters: {
        devices: serving.devices.join(','),
        max_batch_size: contract.maxBatchSize,
        batching: serving.batching.reason,
      },
    };
  }

  /** The configuration in force: what the file says, completed by defaults and by what the model itself says. */
  #config(entry: ModelEntry) {
    const { config, serving } = entry.announced;
    const batched = (serving?.batching.maxBatchSize ?? 0) > 0;
    const signature = serving === undefined ? undefined : interfaceOf(entry.announced, serving).signature;
    return {
      name: entry.name,
      platform: PLATFORM,
      backend: 'onnxruntime',
      max_batch_size: serving?.batching.maxBatchSize ?? null,
      input: signature?.inputs.map((tensor) => configTensor(tensor, batched)) ?? [],
      output: signature?.outputs.map((tensor) => configTensor(tensor, batched)) ?? [],
      ...config,
      ...(serving === undefined
        ? {}
        : { max_batch_size: serving.batching.maxBatchSize, batching_reason: serving.batching.reason }),
    };
  }
}

/** A tensor as a Triton configuration writes it: without the batch dimension where the model is batched. */
function configTensor({ name, datatype, shape }: TensorSpec, batched: boolean) {
  return {
    name,
    data_type: `TYPE_${datatype === 'BYTES' ? 'STRING' : datatype}`,
    dims: batched ? shape.slice(1) : shape,
  };
}

/** Others are listed in the index only. */
function isWanted({ announced }: ModelEntry): boolean {
  return announced.wanted;
}

/** A device's memory is not taken over from another process here. */
export function noCudaRegions(): BatchportError {
  return new BatchportError(
    'NOT_SUPPORTED',
    'This server takes no tensors from shared memory of GPUs; use system shared memory.',
  );
}

interface IndexEntry {
  readonly name: string;
  readonly version: string;
  readonly state: string;
  readonly reason: string;
}

function indexEntry(entry: ModelEntry): IndexEntry {
  const { state, reason } = entry.announced;
  return { name: entry.name, version: entry.version, state, reason };
}

function ok(document: unknown): Document {
  return { status: 200, document };
}

const INDEX_BODY_MAX_BYTES = 64 * 1024;

/** Anything but a JSON object is passed over: clients send all kinds of bodies where none is needed. */
function wantsReady(body: Buffer): boolean {
  if (body.length === 0 || body.length > INDEX_BODY_MAX_BYTES) return false;
  let request: unknown;
  try {
    request = JSON.parse(body.toString('utf8'));
  } catch {
    return false;
  }
  if (typeof request !== 'object' || request === null || !Object.hasOwn(request, 'ready')) return false;
  const { ready } = request as { ready: unknown };
  if (typeof ready !== 'boolean')
    throw new BatchportError('BAD_REQUEST', "'ready' of an index request must be true or false.");
  return ready;
}

/**
 * The configuration of one model, read from its `config.json`.
 *
 * Invariant: a `ModelConfig` is complete, checked and deeply frozen. A field is undefined only where its default depends on
 * what this module cannot see: the signature of the model, or the devices of the server.
 * Bounds: MODEL_CONFIG_BYTES_MAX of text, PROBLEMS_MAX reported faults.
 */

import { z } from 'zod';
import type { Datatype } from '../tensor/datatype.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import { type JsonDocument, type JsonPath, JsonTextError, type JsonValue, parseJsonBytes } from './json-text.ts';
import {
  type GRAPH_OPTIMIZATIONS,
  KEYS_OF_LATER_VERSIONS,
  MODEL_CONFIG_BYTES_MAX,
  type ModelConfigFile,
  modelConfigSchema,
  QUEUE_BYTES_DEFAULT,
  QUEUE_ROWS_DEFAULT,
  RESPONSE_CACHE_BYTES_DEFAULT,
} from './model-config-schema.ts';
import { suggestion } from './nearest.ts';

const PROBLEMS_MAX = 20;
const SHOWN_VALUE_LENGTH_MAX = 60;
const TRANSFORM_TIMEOUT_MS_DEFAULT = 10_000;

export type VersionPolicy =
  | { readonly kind: 'latest'; readonly count: number }
  | { readonly kind: 'all' }
  | { readonly kind: 'specific'; readonly versions: readonly string[] };

/** A run that an instance makes before it takes requests; files are names in the directory `warmup` of the model. */
export type WarmUpConfig = { readonly runs: number } & (
  | { readonly kind: 'request'; readonly file: string }
  | {
      readonly kind: 'made';
      readonly data: 'zeros' | 'random';
      readonly rows: number;
      readonly inputs: readonly WarmUpInput[];
    }
);

export interface WarmUpInput {
  readonly name: string;
  /** Without the dimension of the batch; undefined = as the model has it. */
  readonly dims: readonly number[] | undefined;
  /** undefined = as for the others. */
  readonly data: 'zeros' | 'random' | undefined;
  /** With its bytes, instead. */
  readonly file: string | undefined;
}

/** What is to be known about an output beyond what the model file says; files are names in the directory of the model. */
export interface OutputConfig {
  readonly name: string;
  /** Names of its classes. */
  readonly labels: string | undefined;
  readonly postprocess: readonly PostprocessStep[];
}

/** A tensor as clients send or get it. */
export type TransformTensor = Pick<TensorSpec, 'name' | 'datatype' | 'shape'>;

export interface TransformConfig {
  /** Name of a file in the directory of the model. */
  readonly module: string;
  /** undefined = those of the model; else before() makes those of the model of them. */
  readonly inputs: readonly TransformTensor[] | undefined;
  /** undefined = those of the model; else after() makes them of those of the model. */
  readonly outputs: readonly TransformTensor[] | undefined;
  readonly timeoutMs: number;
  /** In each ingress process. */
  readonly threads: number;
}

/** As in the file, with every default in its place. */
export type PostprocessStep = Readonly<
  NonNullable<NonNullable<ModelConfigFile['outputs']>[number]['postprocess']>[number]
>;

/** A tensor that a configuration says the model has. */
export interface DeclaredTensor {
  readonly kind: 'input' | 'output';
  readonly name: string;
  /** undefined = not said. */
  readonly datatype: Datatype | undefined;
}

export interface ModelConfig {
  /** Rows; 0 = no batching; undefined = decided from the signature. */
  readonly maxBatchSize: number | undefined;
  /** Whether a request of more rows than a batch is run in parts; else it is refused. */
  readonly splitLargeRequests: boolean;
  readonly maxQueueDelayUs: number;
  readonly instances: {
    readonly min: number;
    readonly max: number;
    /** Rows that one is meant for; undefined = more run when rows wait. */
    readonly targetRows: number | undefined;
  };
  /** Names of devices of the server; undefined = all of them. */
  readonly devices: readonly string[] | undefined;
  /** Deadline of a request that brings none, from its arrival; undefined = none. */
  readonly sloMs: number | undefined;
  /** Levels of priority of requests, and that of those that name none, from 1, the most urgent; undefined = all are the same. */
  readonly priorities: { readonly levels: number; readonly default: number } | undefined;
  /** Time without requests after which the weights are released until somebody asks again; undefined = never. */
  readonly idleUnloadS: number | undefined;
  /** Longest time of one run; undefined = the server's. */
  readonly runTimeoutMs: number | undefined;
  readonly queue: { readonly maxRows: number; readonly maxBytes: number };
  /** Bytes that each ingress process keeps of answers, and for how long; undefined = none. */
  readonly responseCache: { readonly maxBytes: number; readonly ttlS: number | undefined } | undefined;
  /** Limit of ONNX Runtime's arena on one device; undefined = none. */
  readonly memoryBudgetBytes: number | undefined;
  readonly versionPolicy: VersionPolicy;
  /** Name of the model file in the directory of a version. */
  readonly modelFilename: string;
  readonly outputs: readonly OutputConfig[];
  readonly transform: TransformConfig | undefined;
  readonly warmUps: readonly WarmUpConfig[];
  /** Of a configuration of Triton; a model that has others is not served with it. */
  readonly tensors: readonly DeclaredTensor[];
  readonly runtime: {
    /** undefined = from the cores of the device. */
    readonly intraOpThreads: number | undefined;
    readonly graphOptimization: GraphOptimization;
    readonly session: Readonly<Record<string, string>>;
    readonly provider: Readonly<Record<string, string>>;
  };
}

export type GraphOptimization = (typeof GRAPH_OPTIMIZATIONS)[number];

export interface ModelConfigProblem {
  /** From 1. */
  readonly line: number;
  /** From 1, in characters. */
  readonly column: number;
  readonly message: string;
}

export type ModelConfigResult =
  | { readonly ok: true; readonly config: ModelConfig }
  /** In the order of the text; at least one. */
  | { readonly ok: false; readonly problems: readonly ModelConfigProblem[] };

/** What a model without a `config.json` has. */
export const DEFAULT_MODEL_CONFIG: ModelConfig = complete({});

/** Reads the bytes of a `config.json`. Never throws: every fault of the content is in `problems`. */
export function parseModelConfig(bytes: Uint8Array): ModelConfigResult {
  let document: JsonDocument;
  try {
    document = parseJsonBytes(bytes, MODEL_CONFIG_BYTES_MAX);
  } catch (error) {
    if (error instanceof JsonTextError) {
      return { ok: false, problems: [{ ...error.position, message: error.message }] };
    }
    throw error;
  }
  const parsed = modelConfigSchema.safeParse(document.value);
  const problems = parsed.success
    ? []
    : parsed.error.issues.slice(0, PROBLEMS_MAX).flatMap((issue) => problemsOf(issue, document));
  problems.push(...unsafeOptionProblems(document));
  problems.push(...(parsed.success ? contradictions(parsed.data, document) : []));
  return parsed.success && problems.length === 0
    ? { ok: true, config: complete(parsed.data) }
    : { ok: false, problems: inTextOrder(problems) };
}

/** Settings that another format has brought, checked like those of a file. Places are the file's start. */
export function modelConfigOf(file: ModelConfigFile, tensors: readonly DeclaredTensor[]): ModelConfigResult {
  const result = parseModelConfig(Buffer.from(JSON.stringify(file)));
  return result.ok ? { ok: true, config: deepFreeze({ ...result.config, tensors }) } : result;
}

/** One line for a person: `config.json:3:5: unknown key …`. */
export function formatModelConfigProblem(file: string, problem: ModelConfigProblem): string {
  return `${file}:${problem.line}:${problem.column}: ${problem.message}`;
}

function problemsOf(issue: z.core.$ZodIssue, document: JsonDocument): ModelConfigProblem[] {
  if (issue.code === 'unrecognized_keys') {
    return issue.keys.slice(0, PROBLEMS_MAX).map((key) => unknownKey([...issue.path, key], document));
  }
  if (issue.code === 'invalid_key') {
    return [badOptionName(issue.path, document)];
  }
  const name = issue.path.length === 0 ? 'the content' : pathText(issue.path);
  const message = `${name} is ${shown(valueAt(document.value, issue.path))}; it must be ${issue.message}`;
  return [{ ...document.valuePosition(issue.path), message }];
}

function unknownKey(path: JsonPath, document: JsonDocument): ModelConfigProblem {
  const position = document.keyPosition(path);
  const parent = pathText(path.slice(0, -1));
  const key = String(path.at(-1));
  if (KEYS_OF_LATER_VERSIONS.get(parent)?.includes(key)) {
    return { ...position, message: `${pathText(path)} is not supported by this version; remove it` };
  }
  const known = knownKeys(path.slice(0, -1));
  const where = parent === '' ? '' : ` in ${parent}`;
  const help = suggestion(key, known) || (known.length === 0 ? '' : `; known are ${known.join(', ')}`);
  return { ...position, message: `unknown key ${shortened(JSON.stringify(key))}${where}${help}` };
}

function badOptionName(path: JsonPath, document: JsonDocument): ModelConfigProblem {
  const parent = pathText(path.slice(0, -1));
  const key = JSON.stringify(String(path.at(-1)));
  const message = `${shortened(key)} in ${parent} cannot be the name of an option: letters, digits and "_.:-", a letter first`;
  return { ...document.keyPosition(path), message };
}

/** zod's records skip a key of this name without a word; here it is refused like any other malformed option name. */
function unsafeOptionProblems(document: JsonDocument): ModelConfigProblem[] {
  return ['session', 'provider']
    .map((table) => ['runtime', table, '__proto__'])
    .filter((path) => valueAt(document.value, path) !== undefined)
    .map((path) => badOptionName(path, document));
}

/** What no single key shows. */
function contradictions(file: ModelConfigFile, document: JsonDocument): ModelConfigProblem[] {
  const problems: ModelConfigProblem[] = [];
  const { min = 1, max = min } = file.instances ?? {};
  if (min > max) {
    const message = `instances.min is ${min} and instances.max ${max}; min must not be above max`;
    problems.push({ ...document.valuePosition(['instances', 'min']), message });
  }
  const { priority_levels: levels = 0, default_priority_level: usual } = file;
  if (usual !== undefined && usual > levels) {
    const message = `default_priority_level is ${usual} and priority_levels ${levels}; the default must be one of the levels`;
    problems.push({ ...document.valuePosition(['default_priority_level']), message });
  }
  for (const [n, { postprocess = [] }] of (file.outputs ?? []).entries()) {
    const last = postprocess.findIndex(({ op }) => op === 'top_k' || op === 'ctc_decode');
    if (last === -1 || last === postprocess.length - 1) continue;
    const message = `outputs[${n}].postprocess goes on behind ${postprocess[last]!.op}, which gives texts; it must be the last step`;
    problems.push({ ...document.valuePosition(['outputs', n, 'postprocess', last + 1]), message });
  }
  if (file.transform !== undefined && file.response_cache?.enable === true) {
    const message = 'response_cache cannot be used with transform; remove one of them';
    problems.push({ ...document.valuePosition(['response_cache']), message });
  }
  const maxRows = file.queue?.max_rows;
  if (maxRows !== undefined && maxRows < (file.max_batch_size ?? 0)) {
    const message = `queue.max_rows is ${maxRows} and max_batch_size ${file.max_batch_size}; the queue must hold a full batch`;
    problems.push({ ...document.valuePosition(['queue', 'max_rows']), message });
  }
  return problems;
}

function complete(file: ModelConfigFile): ModelConfig {
  const { min = 1, max = min } = file.instances ?? {};
  return deepFreeze({
    maxBatchSize: file.max_batch_size,
    splitLargeRequests: file.split_large_requests ?? true,
    maxQueueDelayUs: file.max_queue_delay_us ?? 0,
    instances: { min, max, targetRows: file.instances?.target_rows },
    devices: file.devices,
    sloMs: file.slo_ms,
    priorities: prioritiesOf(file),
    idleUnloadS: file.idle_unload_s,
    runTimeoutMs: file.run_timeout_ms,
    queue: {
      maxRows: file.queue?.max_rows ?? Math.max(QUEUE_ROWS_DEFAULT, file.max_batch_size ?? 0),
      maxBytes: file.queue?.max_bytes ?? QUEUE_BYTES_DEFAULT,
    },
    responseCache: responseCacheOf(file),
    memoryBudgetBytes: file.memory_budget_bytes,
    versionPolicy: policyOf(file.version_policy),
    modelFilename: file.default_model_filename ?? 'model.onnx',
    outputs: (file.outputs ?? []).map(({ name, labels, postprocess = [] }) => ({ name, labels, postprocess })),
    transform: transformOf(file.transform),
    warmUps: (file.warmup ?? []).map(warmUpOf),
    tensors: [],
    runtime: {
      intraOpThreads: file.runtime?.intra_op_threads,
      graphOptimization: file.runtime?.graph_optimization ?? 'all',
      session: { ...file.runtime?.session },
      provider: { ...file.runtime?.provider },
    },
  });
}

function prioritiesOf({
  priority_levels: levels = 0,
  default_priority_level: usual,
}: ModelConfigFile): ModelConfig['priorities'] {
  return levels === 0 ? undefined : { levels, default: usual ?? Math.floor(levels / 2) + 1 };
}

function responseCacheOf({ response_cache: cache }: ModelConfigFile): ModelConfig['responseCache'] {
  if (cache === undefined || cache.enable === false) return undefined;
  return { maxBytes: cache.max_bytes ?? RESPONSE_CACHE_BYTES_DEFAULT, ttlS: cache.ttl_s };
}

function transformOf(transform: ModelConfigFile['transform']): TransformConfig | undefined {
  if (transform === undefined) return undefined;
  const { module, inputs, outputs, timeout_ms: timeoutMs = TRANSFORM_TIMEOUT_MS_DEFAULT, threads = 1 } = transform;
  return { module, inputs, outputs, timeoutMs, threads };
}

function warmUpOf(entry: NonNullable<ModelConfigFile['warmup']>[number]): WarmUpConfig {
  const { runs = 1 } = entry;
  if ('request' in entry) return { kind: 'request', file: entry.request, runs };
  const { data, rows = 1, inputs = [] } = entry;
  return {
    kind: 'made',
    data,
    rows,
    inputs: inputs.map(({ name, dims, data: own, file }) => ({ name, dims, data: own, file })),
    runs,
  };
}

/** Names of the files that warm-ups read. */
export function warmUpFiles({ warmUps }: ModelConfig): string[] {
  return warmUps.flatMap((one) =>
    one.kind === 'request' ? [one.file] : one.inputs.flatMap(({ file }) => (file === undefined ? [] : [file])),
  );
}

/** Names of the text files that are read with the model, each once. */
export function textFileNames({ outputs }: ModelConfig): string[] {
  const names = outputs.flatMap(({ labels, postprocess }) => [
    labels,
    ...postprocess.map((step) => (step.op === 'ctc_decode' ? step.dictionary : undefined)),
  ]);
  return [...new Set(names.filter((name) => name !== undefined))];
}

function policyOf(policy: ModelConfigFile['version_policy']): VersionPolicy {
  if (policy === undefined) {
    return { kind: 'latest', count: 1 };
  }
  if (policy === 'all') {
    return { kind: 'all' };
  }
  return 'latest' in policy
    ? { kind: 'latest', count: policy.latest }
    : { kind: 'specific', versions: [...new Set(policy.specific)] };
}

/** Keys that the schema has in the object at `path`; none where there is no such object. */
function knownKeys(path: JsonPath): string[] {
  let schema: unknown = modelConfigSchema;
  for (const part of path) {
    schema = typeof part === 'number' ? elementOf(schema) : shapeOf(schema)[String(part)];
  }
  return Object.keys(shapeOf(schema)).filter((key) => key !== '$schema');
}

function elementOf(schema: unknown): unknown {
  const list = unwrapped(schema);
  return list instanceof z.ZodArray ? list.element : undefined;
}

function unwrapped(schema: unknown): unknown {
  return schema instanceof z.ZodOptional ? schema.unwrap() : schema;
}

function shapeOf(optional: unknown): Readonly<Record<string, unknown>> {
  const schema = unwrapped(optional);
  return isObject(schema) && 'shape' in schema && isObject(schema.shape) ? schema.shape : {};
}

function valueAt(root: JsonValue, path: JsonPath): JsonValue | undefined {
  let value: unknown = root;
  for (const part of path) {
    value = isObject(value) && Object.hasOwn(value, part) ? value[String(part)] : undefined;
  }
  return value as JsonValue | undefined;
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null;
}

function pathText(path: JsonPath): string {
  return path
    .map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`))
    .join('')
    .replace(/^\./, '');
}

function shown(value: JsonValue | undefined): string {
  return typeof value === 'number' ? String(value) : shortened(JSON.stringify(value) ?? 'missing');
}

function shortened(text: string): string {
  return text.length <= SHOWN_VALUE_LENGTH_MAX ? text : `${text.slice(0, SHOWN_VALUE_LENGTH_MAX)}…`;
}

/** Sorted, one per place (a value that fails several checks is told once), at most PROBLEMS_MAX. */
function inTextOrder(problems: readonly ModelConfigProblem[]): ModelConfigProblem[] {
  const sorted = problems.toSorted((a, b) => a.line - b.line || a.column - b.column);
  return sorted
    .filter((problem, index) => {
      const before = sorted[index - 1];
      return before?.line !== problem.line || before.column !== problem.column;
    })
    .slice(0, PROBLEMS_MAX);
}

function deepFreeze<T extends object>(value: T): T {
  for (const inner of Object.values(value)) {
    if (typeof inner === 'object' && inner !== null) {
      deepFreeze(inner);
    }
  }
  return Object.freeze(value);
}

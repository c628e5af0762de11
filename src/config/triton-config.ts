/**
 * A model's `config.pbtxt`, as Triton Inference Server has it, read as settings of ours: what we honour, what makes no difference here, what would change answers and
 * is refused. One table, from which the README's is made.
 *
 * Source: model_config.proto and docs/user_guide/model_configuration.md of Triton.
 */
import { type Datatype, isDatatype } from '../tensor/datatype.ts';
import { type DeclaredTensor, type ModelConfigProblem, type ModelConfigResult, modelConfigOf } from './model-config.ts';
import { MODEL_CONFIG_BYTES_MAX, type ModelConfigFile } from './model-config-schema.ts';
import { suggestion } from './nearest.ts';
import { parseTextFormat, type TextField, TextFormatError, type TextValue } from './text-format.ts';
import type { TextPosition } from './text-position.ts';

export const TREATMENTS = ['honoured', 'ignored', 'refused'] as const;
export type Treatment = (typeof TREATMENTS)[number];

interface Rule {
  readonly treatment: Treatment;
  /** What becomes of it, or why it is refused; for people. */
  readonly note: string;
  /** Fields of the message. */
  readonly fields?: Rules;
}

interface Rules {
  readonly [field: string]: Rule;
}

const honoured = (note: string, fields?: Rules): Rule => ({ treatment: 'honoured', note, ...(fields && { fields }) });
const ignored = (note: string): Rule => ({ treatment: 'ignored', note });
const refused = (note: string): Rule => ({ treatment: 'refused', note });

const SHOWN_MAX = 80;

/** What every such configuration repeats: no warning for it. */
const SAID_TWICE = 'the model file says it';

const TENSOR: Rules = {
  name: honoured('has to be one of the model file'),
  data_type: honoured('has to be that of the model file'),
  dims: ignored(SAID_TWICE),
  format: ignored(SAID_TWICE),
  label_filename: ignored('labels are those of outputs'),
  is_shape_tensor: ignored('tensors are what the model file says'),
  is_non_linear_format_io: ignored('tensors are what the model file says'),
  allow_ragged_batch: refused('rows of different shapes never share a batch here'),
  optional: refused('every input of the model file is needed'),
  reshape: refused('tensors keep the shapes that the model file says'),
};

/** Fields of ModelConfig, and of its messages where they are looked into. */
export const TRITON_FIELDS: Rules = {
  name: honoured('has to be the name of the directory'),
  platform: honoured('`onnxruntime_onnx`; others are refused'),
  backend: honoured('`onnxruntime`; others are refused'),
  runtime: ignored('there is one'),
  max_batch_size: honoured('`max_batch_size`'),
  version_policy: honoured('`version_policy`', {
    latest: honoured('`{"latest": n}`', { num_versions: honoured('n') }),
    all: honoured('`"all"`', {}),
    specific: honoured('`{"specific": […]}`', { versions: honoured('the versions') }),
  }),
  input: honoured('what the model file says counts; what would change it is refused', TENSOR),
  output: honoured('as `input`', { ...TENSOR, label_filename: honoured('`outputs` with `labels`') }),
  default_model_filename: honoured('`default_model_filename`'),
  dynamic_batching: honoured('batching is on for every model whose rows are independent', {
    max_queue_delay_microseconds: honoured('`max_queue_delay_us`'),
    priority_levels: honoured('`priority_levels`'),
    default_priority_level: honoured('`default_priority_level`'),
    preferred_batch_size: ignored('batches are as large as pays, by measured costs'),
    preserve_ordering: ignored('requests are independent'),
    default_queue_policy: honoured('', {
      max_queue_size: honoured('`queue.max_rows`'),
      default_timeout_microseconds: honoured('`slo_ms`'),
      timeout_action: ignored('what is late is answered 504'),
      allow_timeout_override: ignored('a request may always ask for a sooner deadline'),
    }),
    priority_queue_policy: ignored('levels share the limits of the queue'),
  }),
  instance_group: honoured('the first one', {
    name: ignored('instances have numbers'),
    count: honoured('`instances.min` and `max`'),
    kind: honoured('`KIND_CPU`: `devices` `["cpu"]`; `KIND_GPU`: `["gpu"]`; `KIND_MODEL` is refused'),
    gpus: honoured('`devices` `["gpu:N"]`'),
    rate_limiter: ignored('instances run as soon as they can'),
    profile: ignored('there are no profiles'),
    passive: ignored('every instance runs'),
    host_policy: ignored('devices are pinned by --device'),
    secondary_devices: ignored('devices are those of --device'),
  }),
  optimization: honoured('', {
    graph: honoured('`runtime.graph_optimization`', { level: honoured('-1: basic, 0: all, 1: extended') }),
    priority: ignored('models on a device are equal'),
    cuda: ignored('set `runtime.provider` of a config.json'),
    execution_accelerators: ignored('choose the device, such as --device tensorrt:0'),
    input_pinned_memory: ignored('tensors lie in shared memory'),
    output_pinned_memory: ignored('tensors lie in shared memory'),
    gather_kernel_buffer_threshold: ignored('nothing is gathered'),
    eager_batching: ignored('batches form where they lie'),
  }),
  parameters: honoured('`intra_op_thread_count`: `runtime.intra_op_threads`; others are ignored', {
    key: honoured(''),
    value: honoured('', { string_value: honoured('') }),
  }),
  model_warmup: honoured('`warmup`', {
    name: honoured(''),
    batch_size: honoured('`rows`'),
    count: honoured('`runs`'),
    inputs: honoured('`inputs`', {
      key: honoured(''),
      value: honoured('', {
        data_type: ignored(SAID_TWICE),
        dims: honoured('`dims`'),
        zero_data: honoured('`"data": "zeros"`'),
        random_data: honoured('`"data": "random"`'),
        input_data_file: honoured('`file`'),
      }),
    }),
  }),
  response_cache: honoured('`response_cache`', { enable: honoured('`enable`') }),
  metric_tags: ignored('metrics have the labels that /metrics shows'),
  cc_model_filenames: ignored('there is one file'),
  model_operations: ignored('no libraries are loaded'),
  model_repository_agents: refused('no agents are run'),
  batch_input: refused('inputs are what requests bring'),
  batch_output: refused('outputs are cut by rows'),
  model_transaction_policy: honoured('', { decoupled: refused('a request has one answer') }),
  sequence_batching: refused('models here keep no state between requests'),
  ensemble_scheduling: refused('a model is one ONNX file'),
};

export interface TritonConfig {
  readonly result: ModelConfigResult;
  /** What is passed over, and where. */
  readonly warnings: readonly ModelConfigProblem[];
}

/** Reads the bytes of a `config.pbtxt` of the model in the directory `name`. Never throws: every fault of the content is a problem. */
export function parseTritonConfig(bytes: Uint8Array, name: string): TritonConfig {
  const fault = (message: string, position: TextPosition): TritonConfig => {
    return { result: { ok: false, problems: [{ ...position, message }] }, warnings: [] };
  };
  const start = { line: 1, column: 1 };
  if (bytes.length > MODEL_CONFIG_BYTES_MAX) return fault(`is longer than ${MODEL_CONFIG_BYTES_MAX} bytes`, start);
  let fields: readonly TextField[];
  try {
    fields = parseTextFormat(new TextDecoder('utf-8', { fatal: true }).decode(bytes));
  } catch (error) {
    if (error instanceof TextFormatError) return fault(error.message, error.position);
    return fault('is not UTF-8', start);
  }
  return new Translation(name).result(fields);
}

class Translation {
  readonly #name: string;
  readonly #problems: ModelConfigProblem[] = [];
  readonly #warnings: ModelConfigProblem[] = [];

  constructor(name: string) {
    this.#name = name;
  }

  result(fields: readonly TextField[]): TritonConfig {
    this.#check(fields, TRITON_FIELDS, '');
    const file = this.#problems.length === 0 ? this.#translate(fields) : {};
    const tensors = this.#problems.length === 0 ? this.#tensors(fields) : [];
    if (this.#problems.length > 0) return { result: { ok: false, problems: this.#problems }, warnings: this.#warnings };
    return { result: modelConfigOf(file, tensors), warnings: this.#warnings };
  }

  /** Every field by the table; warnings and problems come in the order of the text. */
  #check(fields: readonly TextField[], rules: Rules, path: string): void {
    for (const { name, value, position } of fields) {
      const full = path === '' ? name : `${path}.${name}`;
      const rule = Object.hasOwn(rules, name) ? rules[name] : undefined;
      if (rule === undefined) {
        this.#problem(`unknown field ${JSON.stringify(full)}${suggestion(name, Object.keys(rules))}`, position);
      } else if (rule.treatment === 'refused' && !isOff(value)) {
        this.#problem(`${full} is not supported: ${rule.note}`, position);
      } else if (rule.treatment === 'ignored') {
        if (rule.note !== SAID_TWICE) this.#warn(`${full} is passed over: ${rule.note}`, position);
      } else if (rule.fields !== undefined) {
        if (value.kind === 'message') this.#check(value.fields, rule.fields, full);
        else this.#problem(`${full} must be a message in "{}"`, value.position);
      }
    }
  }

  #translate(fields: readonly TextField[]): ModelConfigFile {
    const file: Record<string, unknown> = {};
    const set = (key: string, value: unknown): void => {
      if (value !== undefined) file[key] = value;
    };
    this.#expect(fields, 'name', [this.#name, '']);
    this.#expect(fields, 'platform', ['onnxruntime_onnx', '']);
    this.#expect(fields, 'backend', ['onnxruntime', '']);
    set('max_batch_size', this.#integer(fields, 'max_batch_size'));
    set('version_policy', this.#versionPolicy(messageOf(fields, 'version_policy')));
    set('default_model_filename', textOf(fields, 'default_model_filename') || undefined);
    const batching = messageOf(fields, 'dynamic_batching') ?? [];
    set('max_queue_delay_us', this.#integer(batching, 'max_queue_delay_microseconds'));
    set('priority_levels', this.#integer(batching, 'priority_levels'));
    set('default_priority_level', this.#integer(batching, 'default_priority_level') || undefined);
    const policy = messageOf(batching, 'default_queue_policy') ?? [];
    const maxRows = this.#integer(policy, 'max_queue_size');
    if (maxRows) set('queue', { max_rows: maxRows });
    const timeoutUs = this.#integer(policy, 'default_timeout_microseconds');
    if (timeoutUs) set('slo_ms', Math.max(1, Math.round(timeoutUs / 1000)));
    this.#instances(fields, set);
    const cache = messageOf(fields, 'response_cache');
    if (cache !== undefined) set('response_cache', { enable: isTrue(textOf(cache, 'enable')) });
    const level = this.#integer(messageOf(messageOf(fields, 'optimization') ?? [], 'graph') ?? [], 'level');
    const threads = parametersOf(fields).get('intra_op_thread_count');
    const runtime = {
      ...(level === undefined ? {} : { graph_optimization: level < 0 ? 'basic' : level > 0 ? 'extended' : 'all' }),
      ...(threads === undefined || Number(threads) === 0 ? {} : { intra_op_threads: Number(threads) }),
    };
    if (Object.keys(runtime).length > 0) set('runtime', runtime);
    const labels = fields.filter(({ name }) => name === 'output').flatMap(({ value }) => labelsOf(fieldsOf(value)));
    if (labels.length > 0) set('outputs', labels);
    const warmUps = fields
      .filter(({ name }) => name === 'model_warmup')
      .map(({ value }) => this.#warmUp(fieldsOf(value)));
    if (warmUps.length > 0) set('warmup', warmUps);
    for (const { name, value, position } of fields) {
      const key = name === 'parameters' ? (textOf(fieldsOf(value), 'key') ?? '') : 'intra_op_thread_count';
      if (key !== 'intra_op_thread_count') this.#warn(`the parameter ${shown(key)} is passed over`, position);
    }
    return file as ModelConfigFile;
  }

  #tensors(fields: readonly TextField[]): DeclaredTensor[] {
    return fields.flatMap(({ name: kind, value }): DeclaredTensor[] => {
      if (kind !== 'input' && kind !== 'output') return [];
      const about = fieldsOf(value);
      const name = textOf(about, 'name') ?? '';
      const datatype = this.#datatype(about);
      return name === '' ? [] : [{ kind, name, datatype }];
    });
  }

  #datatype(fields: readonly TextField[]): Datatype | undefined {
    const field = fields.findLast(({ name }) => name === 'data_type');
    const text = field === undefined ? 'TYPE_INVALID' : (textOf([field], 'data_type') ?? '');
    if (text === 'TYPE_INVALID') return undefined;
    const datatype = text === 'TYPE_STRING' ? 'BYTES' : text.replace(/^TYPE_(?!BYTES$)/, '');
    if (text.startsWith('TYPE_') && isDatatype(datatype)) return datatype;
    this.#problem(`data_type is ${shown(text)}; it must be a type such as TYPE_FP32`, field!.value.position);
    return undefined;
  }

  #instances(fields: readonly TextField[], set: (key: string, value: unknown) => void): void {
    const groups = fields.filter(({ name }) => name === 'instance_group').map(({ value }) => fieldsOf(value));
    const [group] = groups;
    if (group === undefined) return;
    if (groups.length > 1)
      this.#warn(
        'only the first instance_group is taken',
        fields.findLast(({ name }) => name === 'instance_group')!.position,
      );
    const count = this.#integer(group, 'count') || undefined;
    if (count !== undefined) set('instances', { min: count, max: count });
    const devices = this.#devices(group);
    if (devices.length > 0) set('devices', devices);
  }

  #devices(group: readonly TextField[]): string[] {
    const field = group.findLast(({ name }) => name === 'kind');
    const kind = field === undefined ? 'KIND_AUTO' : textOf([field], 'kind');
    const gpus = valuesOf(group, 'gpus').map((text) => `gpu:${text}`);
    switch (kind) {
      case 'KIND_CPU':
        return ['cpu'];
      case 'KIND_GPU':
        return gpus.length > 0 ? gpus : ['gpu'];
      case 'KIND_AUTO':
        return gpus;
      default:
        this.#problem(
          `instance_group.kind is ${shown(kind)}; it must be KIND_AUTO, KIND_CPU or KIND_GPU`,
          field!.value.position,
        );
        return [];
    }
  }

  #warmUp(fields: readonly TextField[]): unknown {
    const inputs = fields
      .filter(({ name }) => name === 'inputs')
      .map(({ value: entry }) => {
        const about = messageOf(fieldsOf(entry), 'value') ?? [];
        const dims = valuesOf(about, 'dims').map(Number);
        const file = textOf(about, 'input_data_file');
        const data = isTrue(textOf(about, 'random_data')) ? 'random' : 'zeros';
        return { name: textOf(fieldsOf(entry), 'key') ?? '', dims, ...(file === undefined ? { data } : { file }) };
      });
    const rows = this.#integer(fields, 'batch_size') || 1;
    return { data: 'zeros', rows, inputs, runs: this.#integer(fields, 'count') || 1 };
  }

  #versionPolicy(policy: readonly TextField[] | undefined): unknown {
    if (policy === undefined) return undefined;
    if (messageOf(policy, 'all') !== undefined) return 'all';
    const specific = messageOf(policy, 'specific');
    if (specific !== undefined) return { specific: valuesOf(specific, 'versions') };
    const latest = messageOf(policy, 'latest');
    return { latest: (latest === undefined ? undefined : this.#integer(latest, 'num_versions')) ?? 1 };
  }

  #expect(fields: readonly TextField[], name: string, expected: readonly string[]): void {
    const field = fields.findLast((one) => one.name === name);
    const text = field === undefined ? '' : textOf([field], name);
    if (field === undefined || expected.includes(text ?? '')) return;
    this.#problem(`${name} is ${shown(text)}; it must be ${JSON.stringify(expected[0])}`, field.value.position);
  }

  #integer(fields: readonly TextField[], name: string): number | undefined {
    const field = fields.findLast((one) => one.name === name);
    if (field === undefined) return undefined;
    const { value } = field;
    const number = value.kind === 'word' ? Number(value.text) : Number.NaN;
    if (Number.isSafeInteger(number)) return number;
    this.#problem(`${name} must be an integer`, value.position);
    return undefined;
  }

  /** Once for each message. */
  #warn(message: string, { line, column }: TextPosition): void {
    if (this.#warnings.every((warning) => warning.message !== message)) this.#warnings.push({ line, column, message });
  }

  #problem(message: string, { line, column }: TextPosition): void {
    this.#problems.push({ line, column, message });
  }
}

function shown(text = ''): string {
  return JSON.stringify(text.slice(0, SHOWN_MAX));
}

/** `false` asks for nothing; a message, be it empty, does by being there. */
function isOff(value: TextValue): boolean {
  return value.kind !== 'message' && ['false', 'False', 'f', '0'].includes(value.text);
}

function isTrue(text: string | undefined): boolean {
  return text !== undefined && ['true', 'True', 't', '1'].includes(text);
}

function fieldsOf(value: TextValue): readonly TextField[] {
  return value.kind === 'message' ? value.fields : [];
}

/** Of a field that stands there several times, the last one counts, as protocol buffers have it. */
function messageOf(fields: readonly TextField[], name: string): readonly TextField[] | undefined {
  const field = fields.findLast((one) => one.name === name);
  return field === undefined ? undefined : fieldsOf(field.value);
}

function textOf(fields: readonly TextField[], name: string): string | undefined {
  return valuesOf(fields, name).at(-1);
}

function valuesOf(fields: readonly TextField[], name: string): string[] {
  return fields.flatMap((field) => (field.name === name && field.value.kind !== 'message' ? [field.value.text] : []));
}

/** What we say about an output of which Triton has labels. */
function labelsOf(output: readonly TextField[]): { name: string; labels: string }[] {
  const labels = textOf(output, 'label_filename');
  return labels === undefined || labels === '' ? [] : [{ name: textOf(output, 'name') ?? '', labels }];
}

function parametersOf(fields: readonly TextField[]): ReadonlyMap<string, string> {
  return new Map(
    fields
      .filter(({ name }) => name === 'parameters')
      .map(({ value }) => {
        const entry = fieldsOf(value);
        return [textOf(entry, 'key') ?? '', textOf(messageOf(entry, 'value') ?? [], 'string_value') ?? ''] as const;
      }),
  );
}

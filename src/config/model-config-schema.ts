/**
 * The schema of a model's `config.json`: one zod object, from which the checks and the published JSON Schema both come.
 *
 * Invariant: every key that the schema accepts, but for `$schema`, has an effect in this version. Keys of later versions are listed in
 * KEYS_OF_LATER_VERSIONS, so that a file which needs one is refused with that reason and never half obeyed.
 * Bounds: every number, list and table has a limit here.
 */
import { z } from 'zod';
import { DATATYPES, type Datatype } from '../tensor/datatype.ts';
import { formatSizeBytes, parseSizeBytes, SIZE_FORMS, SIZE_PATTERN } from './size.ts';
import { isVersionName, VERSION_NAME_PATTERN } from './version-name.ts';

export const MODEL_CONFIG_BYTES_MAX = 2 ** 20;
export const BATCH_ROWS_MAX = 4096;
export const QUEUE_ROWS_MAX = 2 ** 20;
export const QUEUE_ROWS_DEFAULT = 1024;
export const QUEUE_BYTES_DEFAULT = 256 * 2 ** 20;
export const RESPONSE_CACHE_BYTES_DEFAULT = 64 * 2 ** 20;
/** Versions of one model that are served at the same time. */
export const SERVED_VERSIONS_MAX = 1000;
/** Of src/queue/states.ts. */
const PRIORITY_LEVELS_MAX = 16;
const QUEUE_DELAY_US_MAX = 10_000_000;
const INSTANCES_MAX = 64;
const DEVICES_MAX = 64;
const SLO_MS_MAX = 24 * 3600 * 1000;
const IDLE_UNLOAD_S_MAX = 30 * 24 * 3600;
const RUN_TIMEOUT_MS_MIN = 100;
const RUN_TIMEOUT_MS_MAX = 24 * 3600 * 1000;
const RESPONSE_TTL_S_MAX = 30 * 24 * 3600;
const OPTIONS_MAX = 128;
/** Limits of ONNX Runtime's own option tables. */
const OPTION_KEY_LENGTH_MAX = 1024;
const OPTION_VALUE_LENGTH_MAX = 4096;

const DATATYPE_NAMES = Object.keys(DATATYPES) as Datatype[];

const WARM_UPS_MAX = 32;
const WARM_UP_RUNS_MAX = 1000;
const WARM_UP_INPUTS_MAX = 256;
const OUTPUTS_MAX = 256;
const STEPS_MAX = 8;
const TRANSFORM_THREADS_MAX = 16;
const CLASSES_MAX = 10_000;
const CTC_CLASSES_MAX = 2 ** 20;
const RANK_MAX = 64;
const NAME_LENGTH_MAX = 1024;

const FILENAME_ERROR = 'the name of an .onnx file, without a directory';

export const GRAPH_OPTIMIZATIONS = ['disable', 'basic', 'extended', 'all'] as const;

/** Keys that the configuration is meant to have but which nothing honours yet; '' is the top level. */
export const KEYS_OF_LATER_VERSIONS: ReadonlyMap<string, readonly string[]> = new Map([['', ['inputs', 'source']]]);

/** Every failed check of a value gives this one message, which completes "<key> is <value>; it must be …". */
function integer(min: number, max: number, what: string) {
  const error = `${what} from ${min} to ${max}`;
  return z.int(error).min(min, error).max(max, error);
}

function sizeBytes(min: number, max: number) {
  const error = `${SIZE_FORMS}, from ${formatSizeBytes(min)} to ${formatSizeBytes(max)}`;
  const bytes = z.int(error).min(min, error).max(max, error);
  return z
    .union([bytes, z.string().regex(SIZE_PATTERN, error)], error)
    .transform((value) => (typeof value === 'string' ? parseSizeBytes(value) : value))
    .pipe(bytes);
}

function object<Shape extends z.core.$ZodLooseShape>(shape: Shape) {
  return z.strictObject(shape, 'an object {…}');
}

/** A table of options of ONNX Runtime: names to strings; whole numbers are taken as their decimal text. */
function options() {
  const key = z
    .string()
    .regex(/^[A-Za-z][A-Za-z0-9_.:-]*$/)
    .max(OPTION_KEY_LENGTH_MAX);
  const error = `a string of at most ${OPTION_VALUE_LENGTH_MAX} characters or an integer; ONNX Runtime writes true and false as "1" and "0"`;
  const text = z
    .string()
    .max(OPTION_VALUE_LENGTH_MAX, error)
    .regex(/^[^\0]*$/, error);
  return z
    .record(key, z.union([text, z.int(error)], error).transform(String), 'an object of option names and values')
    .refine((table) => Object.keys(table).length <= OPTIONS_MAX, `an object of at most ${OPTIONS_MAX} options`)
    .meta({ maxProperties: OPTIONS_MAX });
}

function versionPolicy() {
  const versionError = 'a version such as 3 or "3"';
  const version = z
    .union(
      [z.int(versionError).min(1, versionError), z.string().regex(VERSION_NAME_PATTERN, versionError)],
      versionError,
    )
    .transform(String)
    .refine(isVersionName, versionError);
  const count = integer(1, SERVED_VERSIONS_MAX, 'an integer').describe('How many of the highest versions.');
  const listError = `a list of 1 to ${SERVED_VERSIONS_MAX} versions`;
  const list = z.array(version, listError).min(1, listError).max(SERVED_VERSIONS_MAX, listError);
  const error = '{"latest": 2}, "all" or {"specific": [3, 5]}';
  return z.union(
    [
      z.literal('all'),
      z.strictObject({ latest: count }, error),
      z.strictObject({ specific: list.describe('Exactly these versions, as 3 or "3".') }, error),
    ],
    error,
  );
}

/** Runs that every instance makes before it takes requests. */
function warmUps() {
  const listError = `a list of at most ${WARM_UPS_MAX} entries such as {"data": "zeros", "rows": 4} or {"request": "one.json"}`;
  const error = 'an entry such as {"data": "zeros", "rows": 4} or {"request": "one.json"}';
  const fileError = 'the name of a file in the directory "warmup" of the model';
  const file = z.string(fileError).regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}$/, fileError);
  const runs = integer(1, WARM_UP_RUNS_MAX, 'an integer').optional().describe('How often it is run. Default 1.');
  const input = z.strictObject(
    {
      name: z.string(error).max(NAME_LENGTH_MAX, error).describe('Of an input of the model.'),
      dims: z
        .array(integer(0, 2 ** 31 - 1, 'an integer'), error)
        .max(RANK_MAX, error)
        .optional()
        .describe(
          'Its shape, without the dimension of the batch. Default: as the model has it, variable dimensions as the trial run had them.',
        ),
      data: z.enum(['zeros', 'random'], error).optional().describe('Default: as for the others.'),
      file: file
        .optional()
        .describe(
          'File in the directory warmup of the model with its bytes, as in binary requests, instead of zeros or random values.',
        ),
    },
    error,
  );
  const entry = z.union(
    [
      z.strictObject(
        { request: file.describe('File in the directory warmup of the model with the JSON body of a request.'), runs },
        error,
      ),
      z.strictObject(
        {
          data: z.enum(['zeros', 'random'], error).describe('random: floats from 0 to 1, integers 0 and 1.'),
          rows: integer(1, BATCH_ROWS_MAX, 'an integer').optional().describe('Rows of the batch. Default 1.'),
          inputs: z.array(input, error).max(WARM_UP_INPUTS_MAX, error).optional().describe('About single inputs.'),
          runs,
        },
        error,
      ),
    ],
    error,
  );
  return z.array(entry, listError).max(WARM_UPS_MAX, listError);
}

/** What is to be known about outputs beyond what the model file says. */
function outputs() {
  const listError = `a list of at most ${OUTPUTS_MAX} entries such as {"name": "scores", "labels": "labels.txt"}`;
  const error = 'an entry such as {"name": "scores", "labels": "labels.txt"}';
  const nameError = 'the name of an output of the model';
  const output = z.strictObject(
    {
      name: z
        .string(nameError)
        .min(1, nameError)
        .max(NAME_LENGTH_MAX, nameError)
        .describe('Of an output of the model.'),
      labels: textFile()
        .optional()
        .describe(
          'File in the directory of the model with the names of the classes, one a line, for requests that ask for a classification, and for top_k.',
        ),
      postprocess: postprocess()
        .optional()
        .describe('Steps that the output goes through before it is given to clients, in their order.'),
    },
    error,
  );
  return z
    .array(output, listError)
    .max(OUTPUTS_MAX, listError)
    .refine((list) => new Set(list.map(({ name }) => name)).size === list.length, 'a list that names each output once');
}

function postprocess() {
  const listError = `a list of at most ${STEPS_MAX} steps such as {"op": "softmax"}`;
  const error =
    'a step such as {"op": "softmax"}, with its own keys; ops are softmax, sigmoid, argmax, top_k, normalize, mean_pool, dequantize, ctc_decode';
  const op = <Name extends string>(name: Name, what: string) => z.literal(name, error).describe(what);
  const axis = (usual: number) =>
    integer(-RANK_MAX, RANK_MAX - 1, 'an integer')
      .default(usual)
      .describe(`Axis of the output as clients see it, from 0, or from -1 backwards. Default ${usual}.`);
  const finite = z.number('a number');
  const step = z.discriminatedUnion(
    'op',
    [
      z.strictObject(
        { op: op('softmax', 'Exponentials that add up to 1 along the axis. FP32, or FP64.'), axis: axis(-1) },
        error,
      ),
      z.strictObject({ op: op('sigmoid', '1 / (1 + exp(-x)) of each element. FP32, or FP64.') }, error),
      z.strictObject(
        {
          op: op('argmax', 'INT64: index of the highest value along the axis, of several the first. The axis goes.'),
          axis: axis(-1),
        },
        error,
      ),
      z.strictObject(
        {
          op: op(
            'top_k',
            'BYTES "value:index[:label]" of the highest values along the last axis; labels are those of the output.',
          ),
          k: integer(1, CLASSES_MAX, 'an integer').describe('How many; all where there are fewer.'),
        },
        error,
      ),
      z.strictObject(
        {
          op: op('normalize', 'To a Euclidean length of 1 along the axis; zeros stay. FP32, or FP64.'),
          axis: axis(-1),
        },
        error,
      ),
      z.strictObject(
        {
          op: op('mean_pool', 'The mean along the axis, which goes. FP32, or FP64.'),
          axis: axis(1),
          mask: z
            .string('the name of an input of the model')
            .min(1, 'the name of an input of the model')
            .max(NAME_LENGTH_MAX, 'the name of an input of the model')
            .optional()
            .describe(
              'Input of the model with the weights, such as "attention_mask"; its shape is that of the output up to the axis.',
            ),
        },
        error,
      ),
      z.strictObject(
        {
          op: op('dequantize', 'FP32: (x - zero_point) * scale of integers of up to 32 bits.'),
          scale: finite.describe('What a step of the integers is worth.'),
          zero_point: integer(-(2 ** 31), 2 ** 31 - 1, 'an integer')
            .default(0)
            .describe('The integer that stands for 0. Default 0.'),
        },
        error,
      ),
      z.strictObject(
        {
          op: op(
            'ctc_decode',
            'BYTES: the text of [..., steps, classes] by best-path CTC decoding. The last two axes go.',
          ),
          dictionary: textFile().describe(
            'File in the directory of the model with the text of each class but the blank, one a line.',
          ),
          blank: integer(-1, CTC_CLASSES_MAX, 'an integer')
            .default(0)
            .describe('Class of the blank, -1 for the last. Default 0.'),
          space: z
            .boolean('true or false')
            .default(false)
            .describe('Whether behind the dictionary there is a class for the space. Default false.'),
        },
        error,
      ),
    ],
    error,
  );
  return z.array(step, listError).max(STEPS_MAX, listError);
}

function transform() {
  const error =
    'an object such as {"module": "transform.mjs", "inputs": [{"name": "image", "datatype": "BYTES", "shape": [1]}]}';
  const moduleError = 'the name of an ES module (.mjs, .js) in the directory of the model';
  const datatypeError = `a datatype: ${DATATYPE_NAMES.join(', ')}`;
  const listError = `a list of 1 to ${OUTPUTS_MAX} tensors such as {"name": "image", "datatype": "BYTES", "shape": [1]}`;
  const nameError = 'the name of a tensor';
  const tensor = z.strictObject(
    {
      name: z.string(nameError).min(1, nameError).max(NAME_LENGTH_MAX, nameError).describe('As clients write it.'),
      datatype: z.enum(DATATYPE_NAMES, datatypeError).describe('Datatype of the protocol.'),
      shape: z
        .array(integer(-1, 2 ** 31 - 1, 'an integer'), 'a list of dimensions')
        .max(RANK_MAX, `a list of at most ${RANK_MAX} dimensions`)
        .describe('Dimensions, -1 where variable.'),
    },
    listError,
  );
  const tensors = () => z.array(tensor, listError).min(1, listError).max(OUTPUTS_MAX, listError);
  return z
    .strictObject(
      {
        module: z
          .string(moduleError)
          .regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,245}\.m?js$/, moduleError)
          .describe('ES module in the directory of the model that exports before, after, or both.'),
        inputs: tensors().optional().describe('What clients send; before() makes the inputs of the model of it.'),
        outputs: tensors().optional().describe('What clients get; after() makes it of the outputs of the model.'),
        timeout_ms: integer(1, RUN_TIMEOUT_MS_MAX, 'an integer number of milliseconds')
          .optional()
          .describe('Longest time of one call; then it is ended with its thread. Default 10000.'),
        threads: integer(1, TRANSFORM_THREADS_MAX, 'an integer')
          .optional()
          .describe('Threads for it in each ingress process. Default 1.'),
      },
      error,
    )
    .refine(
      ({ inputs: given, outputs: made }) => given !== undefined || made !== undefined,
      'an object with inputs, outputs or both',
    );
}

function textFile() {
  const error = 'the name of a file in the directory of the model';
  return z.string(error).regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}$/, error);
}

export const modelConfigSchema = object({
  $schema: z.string('a string').optional().describe('This schema, for editors; ignored by the server.'),
  max_batch_size: integer(0, BATCH_ROWS_MAX, 'an integer')
    .optional()
    .describe(
      'Most rows that are run together; 0 turns batching off. Without it the signature of the model decides whether rows can be batched.',
    ),
  split_large_requests: z
    .boolean('true or false')
    .optional()
    .describe(
      'Whether a request of more rows than max_batch_size is run in several batches and its results joined; false: it is refused. Default true.',
    ),
  max_queue_delay_us: integer(0, QUEUE_DELAY_US_MAX, 'an integer number of microseconds')
    .optional()
    .describe(
      'How long an idle instance waits for more rows before it runs a batch that is not full, in microseconds. Default 0: run at once.',
    ),
  instances: object({
    min: integer(1, INSTANCES_MAX, 'an integer').optional().describe('Instances that always run. Default 1.'),
    max: integer(1, INSTANCES_MAX, 'an integer').optional().describe('Most instances that may run. Default: min.'),
    target_rows: integer(1, BATCH_ROWS_MAX, 'an integer')
      .optional()
      .describe(
        'Rows, waiting or running, that one instance is meant for: between min and max as many run as that asks for, over a minute, and at once when the load jumps. Default: more run when rows wait for busy ones.',
      ),
  })
    .optional()
    .describe('Threads per device that run the model; they share one copy of its weights.'),
  devices: z
    .array(
      z
        .string('the name of a device, such as "cpu" or "cuda:0"')
        .regex(/^\S{1,128}$/, 'the name of a device, such as "cpu" or "cuda:0"'),
      'a list of device names, such as ["cpu"]',
    )
    .min(1, 'a list of at least one device name')
    .max(DEVICES_MAX, `a list of at most ${DEVICES_MAX} device names`)
    .refine((names) => new Set(names).size === names.length, 'a list that names each device once')
    .meta({ uniqueItems: true })
    .optional()
    .describe(
      'Devices of the server that serve this model, by their names; "cpu" without one of that name means every CPU device, "gpu" every CUDA or TensorRT device, "gpu:1" those with that number. Default: all of them.',
    ),
  slo_ms: integer(1, SLO_MS_MAX, 'an integer number of milliseconds')
    .optional()
    .describe(
      'Latency objective: the deadline of every request, in milliseconds from its arrival, unless it brings a sooner one. What cannot be answered in time is refused at once. Default: none.',
    ),
  priority_levels: integer(0, PRIORITY_LEVELS_MAX, 'an integer')
    .optional()
    .describe(
      'Levels of priority: a request names one by its parameter `priority`, 1 being the most urgent. Urgent rows run first, and overtake at most 32 batches for each level. Default 0: all are the same, whatever they name.',
    ),
  default_priority_level: integer(1, PRIORITY_LEVELS_MAX, 'an integer')
    .optional()
    .describe('Level of requests that name none, or 0. Default: the middle one, of two the lower.'),
  idle_unload_s: integer(1, IDLE_UNLOAD_S_MAX, 'an integer number of seconds')
    .optional()
    .describe(
      'Time without requests, in seconds, after which the weights are released. The next request loads them again and waits for that, inside its deadline. Default: never.',
    ),
  run_timeout_ms: integer(RUN_TIMEOUT_MS_MIN, RUN_TIMEOUT_MS_MAX, 'an integer number of milliseconds')
    .optional()
    .describe(
      'Longest time of one run, in milliseconds; then it is cancelled, and its process killed if that does not end it. Default: --run-timeout-s of the server.',
    ),
  queue: object({
    max_rows: integer(1, QUEUE_ROWS_MAX, 'an integer')
      .optional()
      .describe(
        `Most rows that wait or run at a time; beyond it requests get 429. Default ${QUEUE_ROWS_DEFAULT}, or max_batch_size where that is more.`,
      ),
    max_bytes: sizeBytes(4096, 2 ** 40)
      .optional()
      .describe(
        `Most tensor bytes that wait or run at a time; beyond it requests get 429. Default ${formatSizeBytes(QUEUE_BYTES_DEFAULT)}.`,
      ),
  })
    .optional()
    .describe('Bounds of the queue of the model.'),
  response_cache: object({
    enable: z.boolean('true or false').optional().describe('Default true: to have a response_cache is to want it.'),
    max_bytes: sizeBytes(2 ** 16, 2 ** 40)
      .optional()
      .describe(
        `Most memory of the answers that one ingress process keeps; those that were not asked for for longest go first. Default ${formatSizeBytes(RESPONSE_CACHE_BYTES_DEFAULT)}.`,
      ),
    ttl_s: integer(1, RESPONSE_TTL_S_MAX, 'an integer number of seconds')
      .optional()
      .describe('Time for which an answer is kept, in seconds. Default: as long as there is room.'),
  })
    .optional()
    .describe(
      'Answers are kept, and requests with the same input tensors are answered with them instead of by a run. For models whose outputs depend on their inputs alone. Default: none are.',
    ),
  memory_budget_bytes: sizeBytes(2 ** 20, 2 ** 44)
    .optional()
    .describe(
      'Most memory that ONNX Runtime may take for this model on one device, weights and runs together; a run beyond it fails and is tried with fewer rows. Default: a share of what the device has, see --memory-budget-bytes.',
    ),
  default_model_filename: z
    .string(FILENAME_ERROR)
    .regex(/^[A-Za-z0-9_][A-Za-z0-9_.-]{0,250}\.onnx$/, FILENAME_ERROR)
    .optional()
    .describe('Name of the model file in the directory of a version. Default "model.onnx".'),
  version_policy: versionPolicy().optional().describe('Which version directories are served. Default {"latest": 1}.'),
  outputs: outputs().optional().describe('About single outputs of the model.'),
  transform: transform()
    .optional()
    .describe('Code that runs before and after the model, in threads of the ingress processes.'),
  warmup: warmUps()
    .optional()
    .describe(
      'Runs that an instance makes before it takes requests, such as for shapes whose first run is slow. One that fails keeps the version from being served.',
    ),
  runtime: object({
    intra_op_threads: integer(1, 1024, 'an integer')
      .optional()
      .describe('Threads that one run uses. Default: from the cores of the device.'),
    graph_optimization: z
      .enum(GRAPH_OPTIMIZATIONS, `one of ${GRAPH_OPTIMIZATIONS.map((name) => `"${name}"`).join(', ')}`)
      .optional()
      .describe('How far ONNX Runtime rewrites the graph at load. Default "all".'),
    session: options()
      .optional()
      .describe('Session options of ONNX Runtime by their own names, such as "session.intra_op.allow_spinning".'),
    provider: options()
      .optional()
      .describe(
        'Options of the execution provider of the device by their own names, such as "cudnn_conv_algo_search".',
      ),
  })
    .optional()
    .describe('Settings handed to ONNX Runtime.'),
}).describe('Settings of one model of batchport; every key is optional.');

export type ModelConfigFile = z.output<typeof modelConfigSchema>;

/** JSON Schema (draft 2020-12) of a model's `config.json`, for publication and editors. */
export function modelConfigJsonSchema(): Record<string, unknown> {
  const { $schema, ...rest } = z.toJSONSchema(modelConfigSchema, { io: 'input' });
  return { $schema, title: 'batchport: config.json of a model', ...rest };
}

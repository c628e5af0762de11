/**
 * The OpenAPI document of a server: its routes, and for each model the requests and results that its signature calls for, with an example where that is small.
 *
 * What a schema cannot say, that data has as many elements as its shape, is said in words. Pure. Bound: EXAMPLE_ELEMENTS_MAX elements of an example.
 */
import { ERRORS } from '../config/errors.ts';
import { CLASSES_MAX } from '../postprocess/classes.ts';
import { type Datatype, datatypeInfo } from '../tensor/datatype.ts';
import { elementCount, formatShape } from '../tensor/shape.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import type { ModelInterface } from './model-interface.ts';

const EXAMPLE_ELEMENTS_MAX = 64;

type Json = Readonly<Record<string, unknown>>;

export interface OpenApiModel {
  readonly name: string;
  /** Those that are served. */
  readonly versions: readonly string[];
  /** Of the version that is meant where none is named; undefined before the model has been loaded once. */
  readonly contract: ModelInterface | undefined;
}

export interface OpenApiServer {
  readonly name: string;
  readonly version: string;
  readonly models: readonly OpenApiModel[];
  /** Whether models are loaded and unloaded on command. */
  readonly control: boolean;
  readonly sharedMemory: boolean;
}

export function openApiDocument({ name, version, models, control, sharedMemory }: OpenApiServer): Json {
  const paths: Record<string, Json> = {
    '/v2': { get: document('serverMetadata', 'Name, version and extensions of the server', ref('ServerMetadata')) },
    '/v2/health/live': { get: document('serverLive', 'Whether the server lives', ref('Live')) },
    '/v2/health/ready': {
      get: document('serverReady', 'Whether the server is ready', ref('Ready'), {
        503: json('The server is not ready, and why.', ref('NotReady')),
      }),
    },
    '/v2/openapi.json': { get: document('openApi', 'This document', { type: 'object' }) },
    '/v2/models/stats': { get: document('statistics', 'Statistics of all models', ref('Statistics')) },
    '/v2/logging': {
      get: document('logSettings', 'What is logged', ref('LogSettings')),
      post: change('changeLogSettings', 'Changes what is logged', ref('LogSettings'), ref('LogSettings')),
    },
    '/v2/repository/index': {
      post: change('repositoryIndex', 'Models, versions, states and reasons', ref('IndexRequest'), ref('Index')),
    },
  };
  if (control) {
    const parameters = [pathParameter('model', 'Name of a model of the repository.')];
    for (const action of ['load', 'unload'] as const) {
      const about = action === 'load' ? 'Loads a model, or what is new of it' : 'Unloads all versions of a model';
      paths[`/v2/repository/models/{model}/${action}`] = {
        parameters,
        post: change(`${action}Model`, about, ref('ControlRequest'), undefined),
      };
    }
  }
  if (sharedMemory) Object.assign(paths, regionPaths());
  const schemas: Record<string, Json> = { ...SCHEMAS };
  for (const [n, model] of models.entries()) Object.assign(paths, modelPaths(model, n, schemas));
  return {
    openapi: '3.1.0',
    info: {
      title: name,
      version,
      description: 'Open Inference Protocol v2. Tensors may also be sent and asked for in binary, behind the JSON.',
    },
    paths,
    components: { schemas, responses: RESPONSES },
  };
}

/** Paths of one model, and the schemas of its requests and results, whose names hold its number: names of models may hold anything. */
function modelPaths({ name, versions, contract }: OpenApiModel, n: number, schemas: Record<string, Json>) {
  const paths: Record<string, Json> = {};
  const base = `/v2/models/${encodeURIComponent(name)}`;
  const versionParameter = { ...pathParameter('version', 'A version that is served.'), schema: { enum: versions } };
  const inferOperation = contract === undefined ? undefined : infer(contract, n, schemas);
  for (const [path, suffix, shared] of [
    [base, '', {}],
    [`${base}/versions/{version}`, 'Version', { parameters: [versionParameter] }],
  ] as const) {
    const id = (what: string) => `${what}${suffix}${n}`;
    const tags = [name];
    paths[path] = {
      ...shared,
      get: { tags, ...document(id('metadata'), 'What the model takes and gives', ref('ModelMetadata')) },
    };
    paths[`${path}/ready`] = {
      ...shared,
      get: {
        tags,
        ...document(id('ready'), 'Whether the model is ready', ref('ModelReady'), {
          503: json('The model is not ready, and why.', ref('ModelNotReady')),
        }),
      },
    };
    paths[`${path}/config`] = {
      ...shared,
      get: { tags, ...document(id('config'), 'The configuration in force', { type: 'object' }) },
    };
    paths[`${path}/stats`] = {
      ...shared,
      get: { tags, ...document(id('stats'), 'Statistics of the model', ref('Statistics')) },
    };
    if (inferOperation !== undefined) {
      paths[`${path}/infer`] = { ...shared, post: { tags, operationId: id('infer'), ...inferOperation } };
    }
  }
  return paths;
}

function infer(contract: ModelInterface, n: number, schemas: Record<string, Json>): Json {
  const { inputs, outputs } = contract.signature;
  const rows = contract.batching ? ' The first dimension of every shape is the number of rows.' : '';
  schemas[`Request${n}`] = {
    type: 'object',
    required: ['inputs'],
    properties: {
      id: { type: 'string', description: 'Comes back with the answer.' },
      parameters: ref('RequestParameters'),
      inputs: {
        type: 'array',
        minItems: inputs.length,
        maxItems: inputs.length,
        description: `One of each.${rows} Data has as many elements as its shape, flat or nested.`,
        items: oneOf(inputs.map(inputSchema)),
      },
      outputs: {
        type: 'array',
        description: 'Those that are wanted; none for all of them.',
        items: {
          type: 'object',
          required: ['name'],
          properties: {
            name: { enum: outputs.map(({ name }) => name) },
            parameters: ref('OutputParameters'),
          },
        },
      },
    },
  };
  schemas[`Result${n}`] = {
    type: 'object',
    required: ['model_name', 'model_version', 'outputs'],
    properties: {
      model_name: { const: contract.name },
      model_version: { type: 'string' },
      id: { type: 'string' },
      outputs: { type: 'array', items: { anyOf: [...outputs.map(outputSchema), ref('Classes')] } },
    },
  };
  const example = exampleOf(contract);
  const content = { schema: ref(`Request${n}`), ...(example === undefined ? {} : { example }) };
  return {
    summary: 'Runs the model',
    requestBody: { required: true, content: { 'application/json': content } },
    responses: {
      200: {
        description:
          'The outputs; where any is asked for in binary, JSON and behind it the bytes, with Inference-Header-Content-Length.',
        content: {
          'application/json': { schema: ref(`Result${n}`) },
          'application/octet-stream': {},
        },
      },
      ...errors(400, 404, 408, 413, 415, 429, 500, 501, 503, 504),
    },
  };
}

function inputSchema(spec: TensorSpec): Json {
  const { name, datatype, shape } = spec;
  return {
    type: 'object',
    required: ['name', 'datatype', 'shape'],
    description: `${datatype} ${formatShape(shape)}, -1 where any number goes.`,
    properties: {
      name: { const: name },
      datatype: { const: datatype },
      shape: shapeSchema(shape),
      ...(datatypeInfo(datatype).json ? { data: ref(dataSchemaName(datatype)) } : {}),
      parameters: { type: 'object', properties: { binary_data_size: { type: 'integer', minimum: 0 } } },
    },
  };
}

function outputSchema({ name, datatype, shape }: TensorSpec): Json {
  return {
    type: 'object',
    required: ['name', 'datatype', 'shape'],
    properties: {
      name: { const: name },
      datatype: { const: datatype },
      shape: shapeSchema(shape),
      data: ref(dataSchemaName(datatype)),
      parameters: { type: 'object' },
    },
  };
}

/** Dimensions beside the first are fixed where the signature says so; the first of a batched model is free in it. */
function shapeSchema(shape: readonly number[]): Json {
  return {
    type: 'array',
    minItems: shape.length,
    maxItems: shape.length,
    prefixItems: shape.map((dimension) => (dimension < 0 ? { type: 'integer', minimum: 0 } : { const: dimension })),
    items: { type: 'integer' },
  };
}

/** A request with zeros in every input, one where any number goes; undefined where that is large, or an input has no form in JSON. */
function exampleOf({ signature }: ModelInterface): Json | undefined {
  const inputs: Json[] = [];
  for (const { name, datatype, shape } of signature.inputs) {
    const dims = shape.map((dimension) => (dimension < 0 ? 1 : dimension));
    const count = elementCount(dims) ?? Number.POSITIVE_INFINITY;
    if (count > EXAMPLE_ELEMENTS_MAX || !datatypeInfo(datatype).json) return undefined;
    const { kind } = datatypeInfo(datatype);
    const zero = kind === 'bool' ? false : kind === 'bytes' ? '' : 0;
    inputs.push({ name, datatype, shape: dims, data: new Array(count).fill(zero) });
  }
  return { inputs };
}

function dataSchemaName(datatype: Datatype): string {
  const { kind } = datatypeInfo(datatype);
  return kind === 'bool' ? 'Booleans' : kind === 'bytes' ? 'Texts' : kind === 'float' ? 'Numbers' : 'Integers';
}

function regionPaths(): Record<string, Json> {
  const base = '/v2/systemsharedmemory';
  const parameters = [pathParameter('region', 'Name of a region.')];
  return {
    [`${base}/status`]: { get: document('regions', 'Regions of shared memory', ref('Regions')) },
    [`${base}/unregister`]: { post: change('unregisterRegions', 'Takes out all regions', undefined, undefined) },
    [`${base}/region/{region}/status`]: {
      parameters,
      get: document('region', 'A region of shared memory', ref('Regions')),
    },
    [`${base}/region/{region}/register`]: {
      parameters,
      post: change('registerRegion', 'Registers a region', ref('Region'), undefined),
    },
    [`${base}/region/{region}/unregister`]: {
      parameters,
      post: change('unregisterRegion', 'Takes out a region', undefined, undefined),
    },
  };
}

function document(operationId: string, summary: string, schema: Json, more: Json = {}): Json {
  return { operationId, summary, responses: { 200: json(summary, schema), ...errors(400, 404, 500, 503), ...more } };
}

/** @param body of the request; @param answer undefined for an empty one. */
function change(operationId: string, summary: string, body: Json | undefined, answer: Json | undefined): Json {
  return {
    operationId,
    summary,
    ...(body === undefined ? {} : { requestBody: { content: { 'application/json': { schema: body } } } }),
    responses: {
      200: answer === undefined ? { description: 'Done.' } : json(summary, answer),
      ...errors(400, 404, 408, 413, 415, 429, 500, 501, 503),
    },
  };
}

function pathParameter(name: string, description: string): Json {
  return { name, in: 'path', required: true, description, schema: { type: 'string', minLength: 1 } };
}

function json(description: string, schema: Json): Json {
  return { description, content: { 'application/json': { schema } } };
}

function ref(name: string): Json {
  return { $ref: `#/components/schemas/${name}` };
}

function oneOf(schemas: readonly Json[]): Json {
  return schemas.length === 1 ? schemas[0]! : { oneOf: schemas };
}

function errors(...statuses: readonly number[]): Json {
  return Object.fromEntries(statuses.map((status) => [status, { $ref: `#/components/responses/Error${status}` }]));
}

const TEXT = { type: 'string' } as const;
const COUNT = { type: 'integer', minimum: 0 } as const;
const DURATION = { type: 'object', required: ['count', 'ns'], properties: { count: COUNT, ns: COUNT } } as const;

function object(properties: Json, ...required: readonly string[]): Json {
  return { type: 'object', required: required.length > 0 ? required : Object.keys(properties), properties };
}

function list(items: Json): Json {
  return { type: 'array', items };
}

/** Elements, flat or nested. */
function elements(name: string, element: Json): Json {
  return list({ anyOf: [element, ref(name)] });
}

const TENSOR = object({ name: TEXT, datatype: TEXT, shape: list({ type: 'integer' }) });

/** The answers that are errors, by status: what their codes mean. */
const RESPONSES: Json = Object.fromEntries(
  [...new Set(Object.values(ERRORS).map(({ http }) => http))].map((status) => {
    const codes = Object.entries(ERRORS).filter(([, { http }]) => http === status);
    const description = codes.map(([code, { meaning }]) => `${code}: ${meaning}`).join(' ');
    const schema = object({ error: TEXT, code: { enum: codes.map(([code]) => code) } });
    return [`Error${status}`, json(description, schema)];
  }),
);

const SCHEMAS: Readonly<Record<string, Json>> = {
  Numbers: elements('Numbers', { type: 'number' }),
  Integers: elements('Integers', { type: 'integer' }),
  Booleans: elements('Booleans', { type: 'boolean' }),
  Texts: elements('Texts', TEXT),
  RequestParameters: {
    type: 'object',
    properties: {
      timeout: { ...COUNT, description: 'Microseconds for the answer; 0 for the default of the model.' },
      priority: { ...COUNT, description: 'From 1, the most urgent, where the model has levels; 0 for its default.' },
      binary_data_output: {
        type: 'boolean',
        description: 'Whether outputs come in binary that do not say it themselves.',
      },
    },
  },
  OutputParameters: {
    type: 'object',
    properties: {
      binary_data: { type: 'boolean' },
      classification: {
        ...COUNT,
        maximum: CLASSES_MAX,
        description: 'So many classes of highest value instead of the tensor.',
      },
    },
  },
  Classes: object(
    { name: TEXT, datatype: { const: 'BYTES' }, shape: list({ type: 'integer' }), data: ref('Texts') },
    'name',
    'datatype',
    'shape',
  ),
  ServerMetadata: object({ name: TEXT, version: TEXT, extensions: list(TEXT) }),
  Live: object({ live: { const: true } }),
  Ready: object({ ready: { const: true } }),
  NotReady: object({ ready: { const: false }, error: TEXT }),
  ModelReady: object({ name: TEXT, version: TEXT, ready: { const: true } }),
  // While it is not known at all, an error like any other.
  ModelNotReady: {
    anyOf: [
      object({ name: TEXT, version: TEXT, ready: { const: false }, error: TEXT }),
      object({ error: TEXT, code: TEXT }),
    ],
  },
  ModelMetadata: object({
    name: TEXT,
    versions: list(TEXT),
    platform: TEXT,
    inputs: list(TENSOR),
    outputs: list(TENSOR),
  }),
  Statistics: object({
    model_stats: list(
      object({
        name: TEXT,
        version: TEXT,
        last_inference: COUNT,
        inference_count: COUNT,
        execution_count: COUNT,
        inference_stats: { type: 'object', additionalProperties: DURATION },
        batch_stats: list({ type: 'object', required: ['batch_size'] }),
      }),
    ),
  }),
  IndexRequest: { type: 'object', properties: { ready: { type: 'boolean' } } },
  Index: list(object({ name: TEXT, version: TEXT, state: TEXT, reason: TEXT })),
  ControlRequest: {
    type: 'object',
    properties: {
      parameters: { type: 'object', properties: { config: { ...TEXT, description: 'Text of a config.json.' } } },
    },
  },
  LogSettings: {
    type: 'object',
    properties: {
      log_file: { const: '' },
      log_info: { type: 'boolean' },
      log_warning: { type: 'boolean' },
      log_error: { type: 'boolean' },
      log_verbose_level: COUNT,
      log_format: { const: 'ISO8601' },
    },
    additionalProperties: false,
  },
  Region: object({ key: TEXT, offset: COUNT, byte_size: { ...COUNT, minimum: 1 } }, 'key', 'byte_size'),
  Regions: list(object({ name: TEXT, key: TEXT, offset: COUNT, byte_size: COUNT })),
};

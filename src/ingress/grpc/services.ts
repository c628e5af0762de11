/**
 * The methods of inference.GRPCInferenceService that are documents, and those that the server does not have: the same answers as over HTTP.
 */
import type { Server, ServerUnaryCall, sendUnaryData } from '@grpc/grpc-js';
import { BatchportError } from '../../config/errors.ts';
import { logDocument } from '../../config/log-settings.ts';
import { readSettingValue, writeSettingValue } from '../../protocol/grpc/log-settings.ts';
import { type MessageTable, type MessageValue, readMessage, writeMessage } from '../../protocol/grpc/message.ts';
import {
  CONTROL_REQUEST,
  DATA_TYPES,
  EMPTY,
  INDEX_REQUEST,
  INDEX_RESPONSE,
  LIVE_RESPONSE,
  LOG_SETTINGS,
  MODEL_CONFIG_RESPONSE,
  MODEL_METADATA_RESPONSE,
  MODEL_REQUEST,
  READY_RESPONSE,
  REGION,
  REGION_NAME_REQUEST,
  REGIONS_RESPONSE,
  SERVER_METADATA_RESPONSE,
  STATISTICS_RESPONSE,
} from '../../protocol/grpc/messages.ts';
import { type Documents, noCudaRegions } from '../documents.ts';
import { asBatchportError } from '../inference.ts';
import type { Endpoint } from '../router.ts';
import { statusOf } from './status.ts';

export const INFERENCE_SERVICE = 'inference.GRPCInferenceService';

/** Methods that other servers of the protocol have, and why this one does not. */
const UNSUPPORTED: Readonly<Record<string, string>> = {
  TraceSetting: 'This server writes no traces.',
};

interface Method {
  readonly request: MessageTable;
  readonly response: MessageTable;
  readonly answer: (documents: Documents, request: MessageValue) => MessageValue | Promise<MessageValue>;
}

const METHODS: Readonly<Record<string, Method>> = {
  ServerLive: { request: EMPTY, response: LIVE_RESPONSE, answer: () => ({ live: true }) },
  ServerReady: { request: EMPTY, response: READY_RESPONSE, answer: ({ ready }) => ({ ready }) },
  ServerMetadata: {
    request: EMPTY,
    response: SERVER_METADATA_RESPONSE,
    answer: (documents) => documentOf(documents, 'serverMetadata', {}),
  },
  ModelReady: {
    request: MODEL_REQUEST,
    response: READY_RESPONSE,
    answer: (documents, request) => documentOf(documents, 'modelReady', request),
  },
  ModelMetadata: {
    request: MODEL_REQUEST,
    response: MODEL_METADATA_RESPONSE,
    answer: (documents, request) => {
      const { parameters, ...metadata } = documentOf(documents, 'modelMetadata', request);
      const properties = Object.entries(parameters as object).map(([key, value]) => ({ key, value: String(value) }));
      return { ...metadata, properties };
    },
  },
  ModelConfig: {
    request: MODEL_REQUEST,
    response: MODEL_CONFIG_RESPONSE,
    answer: (documents, request) => {
      const config = documentOf(documents, 'modelConfig', request);
      return { config: { ...config, input: numbered(config.input), output: numbered(config.output) } };
    },
  },
  ModelStatistics: {
    request: MODEL_REQUEST,
    response: STATISTICS_RESPONSE,
    answer: (documents, request) =>
      documentOf(documents, request.name === '' ? 'statistics' : 'modelStatistics', request),
  },
  RepositoryIndex: {
    request: INDEX_REQUEST,
    response: INDEX_RESPONSE,
    answer: (documents, { ready }) => ({ models: documents.entries(ready === true) }),
  },
  RepositoryModelLoad: controlMethod('load'),
  RepositoryModelUnload: controlMethod('unload'),
  LogSettings: {
    request: LOG_SETTINGS,
    response: LOG_SETTINGS,
    answer: async (documents, { settings }) => {
      const given = settings as readonly { key: string; value: Buffer }[];
      const changes = given.map(({ key, value }) => [key, readSettingValue(value)] as const);
      if (changes.length > 0) await documents.control.changeLogging(Object.fromEntries(changes));
      const now = Object.entries(logDocument(documents.logging));
      return { settings: now.map(([key, value]) => ({ key, value: writeSettingValue(value) })) };
    },
  },
  SystemSharedMemoryStatus: {
    request: REGION_NAME_REQUEST,
    response: REGIONS_RESPONSE,
    answer: ({ regions }, { name }) => ({
      regions: regions.status(String(name) || undefined).map((region) => ({ key: region.name, value: region })),
    }),
  },
  SystemSharedMemoryRegister: {
    request: REGION,
    response: EMPTY,
    answer: async ({ control }, { name, key, offset, byte_size }) => {
      const [from, bytes] = [sizeOf('offset', offset), sizeOf('byte_size', byte_size)];
      await control.registerRegion({ name: String(name), key: String(key), offset: from, byteSize: bytes });
      return {};
    },
  },
  SystemSharedMemoryUnregister: {
    request: REGION_NAME_REQUEST,
    response: EMPTY,
    answer: async ({ control }, { name }) => {
      await control.unregisterRegion(String(name) || undefined);
      return {};
    },
  },
  CudaSharedMemoryStatus: {
    request: REGION_NAME_REQUEST,
    response: REGIONS_RESPONSE,
    answer: (_documents, { name }) => {
      if (name !== '') throw noCudaRegions();
      return { regions: [] };
    },
  },
  CudaSharedMemoryRegister: {
    request: EMPTY,
    response: EMPTY,
    answer: () => {
      throw noCudaRegions();
    },
  },
  // Of them there are none, so that they are out.
  CudaSharedMemoryUnregister: { request: REGION_NAME_REQUEST, response: EMPTY, answer: () => ({}) },
};

function documentOf(
  documents: Documents,
  endpoint: Endpoint,
  { name, version }: Readonly<Record<string, unknown>>,
): MessageValue {
  const route = { endpoint, model: String(name ?? ''), version: String(version ?? '') || undefined };
  return documents.answer(route).document as MessageValue;
}

/** Tensors with the numbers of their data types. */
function numbered(tensors: unknown): MessageValue[] {
  return (tensors as { data_type: string }[]).map((tensor) => ({ ...tensor, data_type: DATA_TYPES[tensor.data_type] }));
}

/** Answers when it is done. */
function controlMethod(action: 'load' | 'unload'): Method {
  return {
    request: CONTROL_REQUEST,
    response: EMPTY,
    answer: async (documents, { model_name: model, parameters }) => {
      const entries = parameters as unknown as { key: string; value: Record<string, unknown> }[];
      const values = entries.map(({ key, value }) => [key, givenValue(value)] as const);
      await documents.control.request(action, String(model), new Map(values));
      return {};
    },
  };
}

/** A uint64 that was read as a signed one. @throws BAD_REQUEST where it is larger than anything can be */
function sizeOf(name: string, value: unknown): number {
  if (Number.isSafeInteger(value) && (value as number) >= 0) return value as number;
  throw new BatchportError('BAD_REQUEST', `'${name}' is larger than any shared memory.`);
}

/** A string where it is one, and what is no string otherwise. */
function givenValue({
  string_param: text,
  bool_param: flag,
  int64_param: number,
  bytes_param: bytes,
}: Record<string, unknown>): unknown {
  if ((bytes as Buffer | undefined)?.length) return bytes;
  if (flag === true) return flag;
  return number ? number : text;
}

export function addInferenceDocuments(server: Server, documents: Documents): void {
  for (const [name, { request, response, answer }] of Object.entries(METHODS)) {
    addUnary(server, `/${INFERENCE_SERVICE}/${name}`, async (message) =>
      writeMessage(response, await answer(documents, readMessage(request, message))),
    );
  }
  for (const [name, reason] of Object.entries(UNSUPPORTED)) {
    addUnary(server, `/${INFERENCE_SERVICE}/${name}`, () => {
      throw new BatchportError('NOT_SUPPORTED', reason);
    });
  }
}

/** @param answer may throw what the client is told. */
export function addUnary(server: Server, path: string, answer: (message: Buffer) => Buffer | Promise<Buffer>): void {
  const handle = async (call: ServerUnaryCall<Buffer, Buffer>, done: sendUnaryData<Buffer>): Promise<void> => {
    try {
      done(null, await answer(call.request));
    } catch (error) {
      done(statusOf(asBatchportError(error)));
    }
  };
  server.register(path, handle, asIs, asIs, 'unary');
}

/** Messages are read and written by the handlers: what grpc-js makes of an error in between tells nobody anything. */
export function asIs(message: Buffer): Buffer {
  return message;
}

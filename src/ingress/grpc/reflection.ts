/**
 * grpc.reflection: the .proto files of config/proto, for tools that ask the server for them instead of reading them.
 *
 * The files are parsed when the first question comes, by @grpc/proto-loader, which grpc-js brings along. Source: the protocol's own definition in grpc/grpc, version v1; v1alpha is
 * the same under another name. Streams that are open are let go when the server drains.
 */

import type { ServerHttp2Stream } from 'node:http2';
import { fileURLToPath } from 'node:url';
import { BatchportError, errorKind } from '../../config/errors.ts';
import { writeMessage } from '../../protocol/grpc/message.ts';
import { REFLECTION_RESPONSE } from '../../protocol/grpc/messages.ts';
import { ProtobufReader } from '../../protocol/grpc/protobuf-reader.ts';
import { asBatchportError, shuttingDown } from '../inference.ts';
import type { Calls, OpenCall } from './calls.ts';
import { HEALTH_SERVICE } from './health.ts';
import { linger } from './linger.ts';
import { INFERENCE_SERVICE } from './services.ts';
import { numberOf, OK, statusOf } from './status.ts';
import type { ServerCall, ServerListener } from './types.ts';

const DIRECTORY = fileURLToPath(new URL('../../../../config/proto', import.meta.url));
const FILES = ['inference.proto', 'health.proto'];
const SERVICES = [INFERENCE_SERVICE, HEALTH_SERVICE];

/** Fields of ServerReflectionRequest; all but the first are one question. */
const HOST = 1;
const FILE_BY_FILENAME = 3;
const FILE_CONTAINING_SYMBOL = 4;
const FILE_CONTAINING_EXTENSION = 5;
const LIST_SERVICES = 7;

/** What the files have. */
interface Definitions {
  /** Full names of messages, enumerations, services and methods. */
  readonly symbols: ReadonlySet<string>;
  /** FileDescriptorProto of each file. */
  readonly files: readonly Buffer[];
}

/** Paths of the one method that there is. */
export const REFLECTION_PATHS = ['v1', 'v1alpha'].map(
  (version) => `/grpc.reflection.${version}.ServerReflection/ServerReflectionInfo`,
);

/** A stream of questions, answered one after another. */
export class ReflectionCall implements ServerListener, OpenCall {
  readonly #calls: Calls;
  readonly #call: ServerCall;
  readonly #stream: ServerHttp2Stream;
  readonly #reflection: Reflection;
  #halfClosed = false;

  constructor(calls: Calls, call: ServerCall, stream: ServerHttp2Stream, reflection: Reflection) {
    this.#calls = calls;
    this.#call = call;
    this.#stream = stream;
    this.#reflection = reflection;
  }

  onReceiveMetadata(): void {
    this.#calls.opened(this);
    if (this.#calls.draining) this.drain();
    else this.#call.startRead();
  }

  onReceiveMessage(message: Buffer): void {
    this.#reflection.answer(message).then(
      (answer) => this.#call.sendMessage(answer, () => this.#call.startRead()),
      (error: unknown) => this.#call.sendStatus(statusOf(asBatchportError(error))),
    );
  }

  /** Comes when everything before it has been answered. */
  onReceiveHalfClose(): void {
    this.#halfClosed = true;
    this.#call.sendStatus(OK);
  }

  onCancel(): void {
    this.#calls.closed(this);
    if (!this.#halfClosed) linger(this.#stream);
  }

  drain(): void {
    this.#call.sendStatus(statusOf(shuttingDown()));
  }

  /** Nothing is read before the answer to the question before has been taken. */
  checkTaken(): void {}
}

export class Reflection {
  #definitions: Promise<Definitions> | undefined;

  /** @throws BAD_REQUEST */
  async answer(message: Buffer): Promise<Buffer> {
    this.#definitions ??= loadDefinitions();
    const { symbols, files } = await this.#definitions;
    const { host, field, text } = readQuestion(message);
    const answer = { host, original_request: message };
    if (
      (field === FILE_BY_FILENAME && FILES.includes(text)) ||
      (field === FILE_CONTAINING_SYMBOL && symbols.has(text))
    ) {
      return writeMessage(REFLECTION_RESPONSE, { ...answer, files: { file: files } });
    }
    if (field === LIST_SERVICES) {
      return writeMessage(REFLECTION_RESPONSE, {
        ...answer,
        services: { service: SERVICES.map((name) => ({ name })) },
      });
    }
    const error = { code: numberOf(errorKind('NOT_FOUND').grpc), message: 'This server has no such definition.' };
    return writeMessage(REFLECTION_RESPONSE, { ...answer, error });
  }
}

interface Question {
  readonly host: string;
  /** Which question it is: a field of ServerReflectionRequest; 0 when there is none. */
  readonly field: number;
  readonly text: string;
}

/** @throws BAD_REQUEST */
function readQuestion(message: Buffer): Question {
  let host = '';
  let field = 0;
  let text = '';
  const reader = new ProtobufReader(message);
  while (reader.next()) {
    if (reader.field === HOST) host = reader.string();
    else if (reader.field < FILE_BY_FILENAME || reader.field > LIST_SERVICES) reader.skip();
    else {
      field = reader.field;
      if (field === FILE_CONTAINING_EXTENSION) reader.skip();
      else text = reader.string();
    }
  }
  return { host, field, text };
}

async function loadDefinitions(): Promise<Definitions> {
  const { load } = await import('@grpc/proto-loader');
  const symbols = new Set<string>();
  let files: readonly Buffer[] | undefined;
  for (const [name, definition] of Object.entries(await load(FILES, { includeDirs: [DIRECTORY], keepCase: true }))) {
    symbols.add(name);
    if (isFormatted(definition)) files ??= definition.fileDescriptorProtos;
    else for (const method of Object.keys(definition)) symbols.add(`${name}.${method}`);
  }
  if (files === undefined) throw new BatchportError('INTERNAL', 'The .proto files hold no message.');
  return { symbols, files };
}

/** Whether a definition is a message or an enumeration; what is left are services. */
function isFormatted(definition: object): definition is { readonly fileDescriptorProtos: Buffer[] } {
  return 'fileDescriptorProtos' in definition;
}

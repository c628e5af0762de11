/**
 * The HTTP side of an ingress process: node:http on a socket the supervisor opened, our route table, the inference path.
 *
 *     headers ──▶ route ──▶ model ready? queue not full? ──▶ body ──▶ expand ──▶ Inference.submit … ──▶ answer
 *
 * Everything that can be refused from the headers is refused before the body is read. Bounds: head 16 KiB, body and bodies in flight by BodyBudget, time for
 * the head and time without progress of a body by settings. What it does not know: shapes, batches, devices.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { BatchportError } from '../config/errors.ts';
import type { Logger } from '../config/log.ts';
import type { BoundRequest } from '../protocol/bound-request.ts';
import type { IngressSettings } from '../protocol/control.ts';
import { parseInferenceHeaderLength } from '../protocol/inference-header.ts';
import type { EncodedResponse, OutputTensor } from '../protocol/response-encoder.ts';
import { nowUs } from '../system/clock.ts';
import { type BodyBudget, BodyRead, type BodyReceiver, canBeDropped, DroppedBody } from './body.ts';
import { Connection } from './connection.ts';
import { jsonObject, regionRequest } from './control-body.ts';
import { headRefusal, sooner } from './deadline.ts';
import type { Documents } from './documents.ts';
import { Expander, parseEncoding } from './expand.ts';
import { rawAnswer, sendEmpty, sendError, sendJson, sendResult } from './http-reply.ts';
import { asBatchportError, Inference, queueFull, type Reply, shuttingDown } from './inference.ts';
import { listenOn } from './listen-on.ts';
import { ModelTable } from './model-table.ts';
import { writeLonePiecesAlone } from './one-write.ts';
import { controlParameters } from './remote-control.ts';
import { answerEncoding, type RequestHeaders, readHeaders } from './request-headers.ts';
import { type Endpoint, type Route, Router } from './router.ts';
import { OUTCOME_INDEX, type Serving } from './served-model.ts';

const HEAD_MAX_BYTES = 16 * 1024;
/** How often node looks for connections that are late with their heads. */
const TIMEOUT_CHECK_MS = 1000;

export class HttpServer {
  readonly #models: ModelTable;
  readonly #documents: Documents;
  readonly #log: Logger;
  readonly #router = new Router();
  readonly #budget: BodyBudget;
  readonly #expander: Expander;
  readonly #server: Server;
  #draining = false;

  constructor(models: ModelTable, documents: Documents, budget: BodyBudget, settings: IngressSettings, log: Logger) {
    this.#models = models;
    this.#documents = documents;
    this.#log = log;
    this.#budget = budget;
    this.#expander = new Expander(this.#budget);
    const handle = (request: IncomingMessage, response: ServerResponse) => this.#handle(request, response);
    const idleMs = settings.bodyIdleTimeoutS * 1000;
    this.#server = createServer(
      {
        maxHeaderSize: HEAD_MAX_BYTES,
        headersTimeout: settings.headersTimeoutS * 1000,
        // Long uploads are legal; bodies that make no progress are ended by the sweeper.
        requestTimeout: 0,
        keepAliveTimeout: settings.keepAliveTimeoutS * 1000,
        connectionsCheckingInterval: TIMEOUT_CHECK_MS,
        // Checked by our own code, whose answer says what is wrong.
        requireHostHeader: false,
        noDelay: true,
      },
      handle,
    );
    this.#server.on('clientError', refuseConnection);
    // A client that asks before it sends its body is told to go on only when the head alone is no reason to refuse.
    this.#server.on('checkContinue', handle);
    // Other expectations may be ignored.
    this.#server.on('checkExpectation', handle);
    this.#server.on('connect', refuseTunnel);
    // Every connection is known from its start, so that a drain finds those that wait for nothing.
    this.#server.on('connection', (socket: Socket) => {
      Connection.of(socket);
      writeLonePiecesAlone(socket);
    });
    this.#server.on('timeout', (socket: Socket) => Connection.of(socket).timedOut());
    Connection.takeTimeoutMs = idleMs;
    setInterval(Connection.sweep, idleMs).unref();
  }

  /** Accepts connections on a listening socket inherited from the supervisor. */
  listen(fd: number): Promise<void> {
    return listenOn(this.#server, fd);
  }

  /**
   * From now on inference is refused and each answer is the last one of its connection. Connections are still accepted: a client that is told can go
   * elsewhere, one that waits in the backlog cannot.
   */
  drain(): void {
    this.#draining = true;
  }

  get draining(): boolean {
    return this.#draining;
  }

  /** Connections with requests that have not been answered, or with answers that have not gone out. Others are closed while draining. */
  busyConnections(): number {
    if (this.#draining) Connection.closeIdle();
    return Connection.busyCount;
  }

  destroyConnections(): void {
    this.#server.closeAllConnections();
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    const startedUs = nowUs();
    const connection = Connection.of(request.socket);
    // What comes behind a request whose answer was the last one.
    if (connection.lingering) return;
    connection.last = response;
    const headers = readHeaders(request.rawHeaders);
    try {
      if (this.#draining) response.shouldKeepAlive = false;
      const { hosts, fault } = headers;
      if (hosts > 1 || (hosts === 0 && request.httpVersion !== '1.0')) {
        throw new BatchportError('BAD_REQUEST', 'The request must have one Host header.');
      }
      if (fault !== undefined) throw fault;
      const route = this.#router.match(request.method ?? '', request.url ?? '');
      if (route.endpoint === 'infer') this.#infer(request, response, connection, headers, route, startedUs);
      else if (route.endpoint === 'repositoryLoad' || route.endpoint === 'repositoryUnload') {
        this.#documents.control.requireOpen();
        const action = route.endpoint === 'repositoryLoad' ? 'load' : 'unload';
        this.#withBody(request, response, connection, headers, async (body) => {
          await this.#documents.control.request(action, route.model, controlParameters(body));
          sendEmpty(response);
        });
      } else if (Object.hasOwn(REGION_CHANGES, route.endpoint)) {
        const change = REGION_CHANGES[route.endpoint as keyof typeof REGION_CHANGES];
        this.#withBody(request, response, connection, headers, async (body) => {
          await change(this.#documents, route.region, body);
          sendEmpty(response);
        });
      } else if (route.endpoint === 'logging' && request.method === 'POST') {
        this.#withBody(request, response, connection, headers, async (body) => {
          await this.#documents.control.changeLogging(jsonObject(body));
          const { status, document } = this.#documents.answer(route);
          sendJson(response, status, document);
        });
      } else if (route.endpoint === 'repositoryIndex' && headers.contentLength !== 0 && !headers.expectsContinue) {
        // It takes a small body: `{"ready": true}` leaves out what is not ready.
        this.#withBody(request, response, connection, headers, async (body) => {
          sendJson(response, 200, this.#documents.index(body));
        });
      } else {
        const { status, document } = this.#documents.answer(route);
        dropBody(request, response, connection, headers);
        sendJson(response, status, document);
      }
    } catch (error) {
      const refusal = asBatchportError(error);
      this.noteBug(refusal);
      dropBody(request, response, connection, headers);
      sendError(response, refusal);
    }
    connection.watch(response);
  }

  #infer(
    request: IncomingMessage,
    response: ServerResponse,
    connection: Connection,
    headers: RequestHeaders,
    route: Route,
    startedUs: number,
  ): void {
    const serving = ModelTable.serving(this.#models.find(route.model, route.version));
    const timeoutUs = sooner(headers.deadlineUs, serving.sloUs);
    const fromHead = serving.decidesFromHead(headers.contentLength);
    if (timeoutUs > 0 && fromHead && !this.#draining) {
      const refusal = headRefusal(serving.outlook, headers.contentLength, timeoutUs, startedUs);
      if (refusal !== undefined) {
        serving.counters.outcome(OUTCOME_INDEX.rejected);
        this.noteFailure(refusal, serving.key, undefined);
        dropBody(request, response, connection, headers);
        sendError(response, refusal);
        return;
      }
    }
    const exchange = new InferExchange(this, request, response, connection, serving, headers, startedUs, timeoutUs);
    try {
      // Refused from the headers, before a byte of the body has been looked at.
      if (this.#draining) throw shuttingDown();
      if (fromHead && serving.producer.full) throw queueFull();
      exchange.readBody(this.#budget);
    } catch (error) {
      dropBody(request, response, connection, headers);
      exchange.fail(asBatchportError(error));
    }
  }

  /** Reads a small body, and then lets `act` answer; what it throws is answered here. @throws BODY_TOO_LARGE */
  #withBody(
    request: IncomingMessage,
    response: ServerResponse,
    connection: Connection,
    headers: RequestHeaders,
    act: (body: Buffer) => Promise<void>,
  ): void {
    const answer = async (body: Buffer): Promise<void> => {
      try {
        await act(body);
      } catch (error) {
        const refusal = asBatchportError(error);
        this.noteBug(refusal);
        sendError(response, refusal);
      }
      connection.watch(response);
    };
    if (headers.contentLength === -1 && !headers.chunked) {
      request.resume();
      void answer(Buffer.alloc(0));
      return;
    }
    this.#budget.check(headers.contentLength);
    if (headers.expectsContinue) response.writeContinue();
    connection.reading = new BodyRead(request, headers.contentLength, this.#budget, {
      bodyRead: (body) => void answer(body),
      bodyFailed: (error) => {
        connection.closeAfter(response);
        sendError(response, error);
      },
    });
  }

  noteBug(error: BatchportError): void {
    if (error.code === 'INTERNAL') this.#log.error({ err: error.cause ?? error }, 'a request failed; this is a bug');
  }

  /** For whoever looks for a request of theirs: the id it came with is in the line. */
  noteFailure(error: BatchportError, model: string, id: string | undefined): void {
    this.noteBug(error);
    this.#log.debug({ model, id, code: error.code, reason: error.message }, 'request not answered with a result');
  }

  get budget(): BodyBudget {
    return this.#budget;
  }

  get expander(): Expander {
    return this.#expander;
  }
}

/** A body that is not wanted, where one is coming: small ones are read so that the connection can go on. To be called before the answer is sent. */
function dropBody(
  request: IncomingMessage,
  response: ServerResponse,
  connection: Connection,
  headers: RequestHeaders,
): void {
  const { contentLength, chunked, expectsContinue } = headers;
  if (contentLength <= 0 && !chunked) {
    request.resume();
    return;
  }
  // A client that was not told to go on may send its body all the same, or not.
  if (expectsContinue || !canBeDropped(contentLength)) {
    request.resume();
    connection.closeAfter(response);
    return;
  }
  connection.reading = new DroppedBody(request, () => connection.linger());
}

/** One inference over one HTTP exchange: from the body to the answer. */
class InferExchange implements Reply, BodyReceiver {
  readonly #server: HttpServer;
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #headers: RequestHeaders;
  readonly #connection: Connection;
  readonly #inference: Inference;
  #encoding: 'gzip' | 'deflate' | undefined;

  constructor(
    server: HttpServer,
    request: IncomingMessage,
    response: ServerResponse,
    connection: Connection,
    serving: Serving,
    headers: RequestHeaders,
    startedUs: number,
    timeoutUs: number,
  ) {
    this.#server = server;
    this.#request = request;
    this.#response = response;
    this.#headers = headers;
    this.#connection = connection;
    this.#inference = new Inference(serving, this, startedUs, timeoutUs);
    connection.add(this.#inference);
  }

  /** @throws BatchportError for what the headers tell. */
  readBody(budget: BodyBudget): void {
    const { contentLength, contentEncoding, expectsContinue } = this.#headers;
    if (contentEncoding !== '') this.#encoding = parseEncoding(contentEncoding);
    budget.check(contentLength);
    this.#inference.expectBody(contentLength);
    if (expectsContinue) this.#response.writeContinue();
    this.#connection.reading = new BodyRead(this.#request, contentLength, budget, this);
  }

  bodyRead(body: Buffer): void {
    if (this.#encoding === undefined) this.#submit(body, body.length);
    else void this.#expand(body, this.#encoding);
  }

  piecesRead(pieces: readonly Buffer[], length: number): void {
    if (this.#encoding === undefined) this.#submit(pieces, length);
    else void this.#expand(Buffer.concat(pieces, length), this.#encoding);
  }

  /** The rest of the body is not worth reading. */
  bodyFailed(error: BatchportError): void {
    this.#connection.closeAfter(this.#response);
    this.fail(error);
  }

  async #expand(body: Buffer, encoding: 'gzip' | 'deflate'): Promise<void> {
    try {
      const expanded = await this.#server.expander.expand(body, encoding, () => !this.#inference.finished);
      if (!this.#inference.finished) this.#submit(expanded, expanded.length);
    } catch (error) {
      this.fail(asBatchportError(error));
    }
  }

  #submit(body: Buffer | readonly Buffer[], length: number): void {
    let headerLength: number | undefined;
    try {
      headerLength = parseInferenceHeaderLength(this.#headers.inferenceHeaderLengths, length);
    } catch (error) {
      this.fail(asBatchportError(error));
      return;
    }
    if (headerLength === undefined && this.#headers.isMedia) {
      this.#inference.submitPayload(Buffer.isBuffer(body) ? body : Buffer.concat(body, length));
    } else this.#inference.submit(body, length, headerLength);
  }

  fail(error: BatchportError): void {
    this.#inference.fail(error);
  }

  reserve(bytes: number): number {
    return this.#server.budget.reserve(bytes);
  }

  unreserve(bytes: number): void {
    this.#server.budget.give(bytes);
  }

  encode(serving: Serving, request: BoundRequest, outputs: readonly OutputTensor[]): EncodedResponse {
    return serving.encoder.encode(request, outputs);
  }

  sendResult(result: EncodedResponse): void {
    const response = this.#response;
    if (this.#server.draining) response.shouldKeepAlive = false;
    const { acceptEncoding } = this.#headers;
    const encoding = acceptEncoding === '' ? undefined : answerEncoding(acceptEncoding);
    const sending = sendResult(response, result, encoding);
    if (sending === undefined) this.#sent(result.body.length);
    else void sending.then(() => this.#sent(result.body.length));
  }

  #sent(bytes: number): void {
    this.#connection.delete(this.#inference);
    this.#connection.hold(this.#response, bytes, this.#server.budget);
  }

  sendError(error: BatchportError): void {
    this.#server.noteFailure(error, this.#inference.model, this.#inference.id);
    if (this.#server.draining) this.#response.shouldKeepAlive = false;
    sendError(this.#response, error);
    this.#connection.watch(this.#response);
    this.#connection.delete(this.#inference);
  }
}

type RegionChange = (documents: Documents, name: string | undefined, body: Buffer) => Promise<void>;

const unregister: RegionChange = ({ control }, name) => control.unregisterRegion(name);
/** Of those of GPUs there are none, so that they are out. */
const unregisterNothing: RegionChange = async () => {};

/** Requests that change which regions of shared memory there are. */
const REGION_CHANGES = {
  systemRegister: ({ control }, name, body) => control.registerRegion(regionRequest(name ?? '', body)),
  systemUnregister: unregister,
  systemUnregisterAll: unregister,
  cudaUnregister: unregisterNothing,
  cudaUnregisterAll: unregisterNothing,
} as const satisfies Partial<Record<Endpoint, RegionChange>>;

const CLIENT_ERRORS: Record<string, [number, string, string]> = {
  HPE_HEADER_OVERFLOW: [
    431,
    'Request Header Fields Too Large',
    `The head of the request is larger than ${HEAD_MAX_BYTES} bytes.`,
  ],
  ERR_HTTP_REQUEST_TIMEOUT: [408, 'Request Timeout', 'The head of the request came too slowly (--headers-timeout-s).'],
};

/** Answers what is not HTTP, or comes too slowly, and closes. */
function refuseConnection(error: NodeJS.ErrnoException, socket: Socket): void {
  const connection = Connection.of(socket);
  if (connection.lingering) return;
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  if (connection.reading !== undefined && !connection.reading.ended) {
    connection.reading.malformed();
    return;
  }
  if (!connection.allAnswered || connection.last?.shouldKeepAlive === false) {
    // An answer to what is no request would be taken for that of a request before it, or come behind the last one. If the client left, it waits for none.
    if (error.code === 'HPE_INVALID_EOF_STATE') socket.destroy();
    else connection.closeAfterAnswers();
    return;
  }
  const [status, phrase, message] = CLIENT_ERRORS[error.code ?? ''] ?? [
    400,
    'Bad Request',
    'The request is not valid HTTP.',
  ];
  socket.write(rawAnswer(status, phrase, { error: message, code: status === 408 ? 'REQUEST_TIMEOUT' : 'BAD_REQUEST' }));
  connection.linger();
}

/** CONNECT: nothing is tunnelled. */
function refuseTunnel(_request: IncomingMessage, socket: Duplex): void {
  socket.on('error', () => socket.destroy());
  const message = 'Method Not Allowed; this server is no proxy.';
  socket.end(
    rawAnswer(405, 'Method Not Allowed', { error: message, code: 'METHOD_NOT_ALLOWED' }, ['Allow: GET, HEAD, POST']),
  );
}

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
import { BatchportError } from '../config/errors.ts';
import type { Logger } from '../config/log.ts';
import type { IngressSettings } from '../protocol/control.ts';
import { parseInferenceHeaderLength } from '../protocol/inference-header.ts';
import type { EncodedResponse } from '../protocol/response-encoder.ts';
import { nowUs } from '../system/clock.ts';
import { BodyBudget, BodyRead, type BodyReceiver, expandBody } from './body.ts';
import { Connection } from './connection.ts';
import type { Documents } from './documents.ts';
import { sendError, sendJson, sendResult } from './http-reply.ts';
import { asBatchportError, Inference, QUEUE_FULL_MESSAGE, type Reply } from './inference.ts';
import { ModelTable } from './model-table.ts';
import { answerEncoding, type RequestHeaders, readHeaders } from './request-headers.ts';
import { type Route, Router } from './router.ts';
import type { Serving } from './served-model.ts';

const HEAD_MAX_BYTES = 16 * 1024;
/** listen() is called again in each process that accepts, and sets this anew. */
const LISTEN_BACKLOG = 1024;
/** How often node looks for connections that are late with their heads. */
const TIMEOUT_CHECK_MS = 1000;
/** A refused body of up to this size is read and dropped, so that the connection can go on. */
const DRAIN_MAX_BYTES = 256 * 1024;

export class HttpServer {
  readonly #models: ModelTable;
  readonly #documents: Documents;
  readonly #log: Logger;
  readonly #router = new Router();
  readonly #budget: BodyBudget;
  readonly #server: Server;
  readonly #sweeper: NodeJS.Timeout;
  #draining = false;

  constructor(models: ModelTable, documents: Documents, settings: IngressSettings, log: Logger) {
    this.#models = models;
    this.#documents = documents;
    this.#log = log;
    this.#budget = new BodyBudget(settings.maxInflightBytes, settings.maxBodyBytes);
    this.#server = createServer(
      {
        maxHeaderSize: HEAD_MAX_BYTES,
        headersTimeout: settings.headersTimeoutS * 1000,
        // Long uploads are legal; bodies that make no progress are ended by the sweeper.
        requestTimeout: 0,
        keepAliveTimeout: settings.keepAliveTimeoutS * 1000,
        connectionsCheckingInterval: TIMEOUT_CHECK_MS,
        noDelay: true,
      },
      (request, response) => this.#handle(request, response),
    );
    this.#server.on('clientError', refuseConnection);
    // A client that asks before it sends its body is told to go on only when the head alone is no reason to refuse.
    this.#server.on('checkContinue', (request: IncomingMessage, response: ServerResponse) =>
      this.#handle(request, response),
    );
    this.#sweeper = setInterval(Connection.sweep, settings.bodyIdleTimeoutS * 1000);
    this.#sweeper.unref();
  }

  /** Accepts connections on a listening socket inherited from the supervisor. */
  listen(fd: number): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen({ fd, backlog: LISTEN_BACKLOG }, () => {
        this.#server.removeListener('error', reject);
        resolve();
      });
    });
  }

  /** Stops accepting; idle connections are closed, others after their answer. */
  drain(): void {
    this.#draining = true;
    clearInterval(this.#sweeper);
    this.#server.close();
    this.#server.closeIdleConnections();
  }

  destroyConnections(): void {
    this.#server.closeAllConnections();
  }

  #handle(request: IncomingMessage, response: ServerResponse): void {
    const startedUs = nowUs();
    try {
      if (this.#draining) response.shouldKeepAlive = false;
      const route = this.#router.match(request.method ?? '', request.url ?? '');
      if (route.endpoint === 'infer') this.#infer(request, response, route, startedUs);
      else this.#document(request, response, route);
    } catch (error) {
      this.#refuse(request, response, asBatchportError(error));
    }
  }

  #infer(request: IncomingMessage, response: ServerResponse, route: Route, startedUs: number): void {
    const headers = readHeaders(request.rawHeaders);
    const serving = ModelTable.serving(this.#models.find(route.model, route.version));
    const exchange = new InferExchange(request, response, serving, headers, this.#budget, startedUs);
    try {
      // Refused from the headers, before a byte of the body has been looked at.
      if (this.#draining) throw new BatchportError('DRAINING', 'The server is shutting down.');
      if (serving.producer.full) throw new BatchportError('QUEUE_FULL', QUEUE_FULL_MESSAGE);
      exchange.readBody();
    } catch (error) {
      exchange.refuse(asBatchportError(error), headers.contentLength === -1 || headers.contentLength > DRAIN_MAX_BYTES);
    }
  }

  /** Everything but inference: small documents. A body, where one is sent, is read and ignored. */
  #document(request: IncomingMessage, response: ServerResponse, route: Route): void {
    request.resume();
    const { status, document } = this.#documents.answer(route);
    sendJson(response, status, document);
  }

  #refuse(request: IncomingMessage, response: ServerResponse, error: BatchportError): void {
    const declared = Number(
      request.headers['content-length'] ??
        (request.headers['transfer-encoding'] === undefined ? 0 : Number.POSITIVE_INFINITY),
    );
    const close = !(declared <= DRAIN_MAX_BYTES);
    if (error.code === 'INTERNAL') this.#log.error({ err: error.cause ?? error }, 'a request failed; this is a bug');
    if (!close) request.resume();
    sendError(response, error, close);
  }
}

/** One inference over one HTTP exchange: from the body to the answer. */
class InferExchange implements Reply, BodyReceiver {
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #headers: RequestHeaders;
  readonly #budget: BodyBudget;
  readonly #connection: Connection;
  readonly #inference: Inference;

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    serving: Serving,
    headers: RequestHeaders,
    budget: BodyBudget,
    startedUs: number,
  ) {
    this.#request = request;
    this.#response = response;
    this.#headers = headers;
    this.#budget = budget;
    this.#connection = Connection.of(request.socket);
    this.#inference = new Inference(serving, this, startedUs);
    this.#connection.add(this.#inference);
  }

  /** @throws BatchportError for what the headers tell. */
  readBody(): void {
    const { contentLength } = this.#headers;
    this.#budget.check(contentLength);
    if (this.#headers.expectsContinue) this.#response.writeContinue();
    this.#connection.reading = new BodyRead(this.#request, contentLength, this.#budget, this);
  }

  bodyRead(body: Buffer): void {
    if (this.#headers.contentEncoding === '') this.#submit(body);
    else void this.#expand(body);
  }

  bodyFailed(error: BatchportError): void {
    this.refuse(error, true);
  }

  async #expand(body: Buffer): Promise<void> {
    try {
      const expanded = await expandBody(body, this.#headers.contentEncoding, this.#budget.maxBodyBytes);
      if (!this.#inference.finished) this.#submit(expanded);
    } catch (error) {
      this.#inference.fail(asBatchportError(error));
    }
  }

  #submit(body: Buffer): void {
    let headerLength: number | undefined;
    try {
      headerLength = parseInferenceHeaderLength(this.#headers.inferenceHeaderLengths, body.length);
    } catch (error) {
      this.#inference.fail(asBatchportError(error));
      return;
    }
    this.#inference.submit(body, headerLength);
  }

  /** Answers while the body has not been read to its end. `close`: the rest of it is not worth reading. */
  refuse(error: BatchportError, close: boolean): void {
    if (close) this.#response.shouldKeepAlive = false;
    else this.#request.resume();
    this.#inference.fail(error);
    if (close) this.#response.once('finish', () => this.#request.socket.destroySoon());
  }

  sendResult(result: EncodedResponse): void {
    this.#connection.delete(this.#inference);
    const { acceptEncoding } = this.#headers;
    sendResult(this.#response, result, acceptEncoding === '' ? undefined : answerEncoding(acceptEncoding));
  }

  sendError(error: BatchportError): void {
    this.#connection.delete(this.#inference);
    sendError(this.#response, error, !this.#response.shouldKeepAlive);
  }
}

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
  if (error.code === 'ECONNRESET' || !socket.writable) {
    socket.destroy();
    return;
  }
  const [status, phrase, message] = CLIENT_ERRORS[error.code ?? ''] ?? [
    400,
    'Bad Request',
    'The request is not valid HTTP.',
  ];
  const body = JSON.stringify({ error: message, code: status === 408 ? 'REQUEST_TIMEOUT' : 'BAD_REQUEST' });
  socket.end(
    `HTTP/1.1 ${status} ${phrase}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`,
  );
}

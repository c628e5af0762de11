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
import { BodyBudget, BodyRead, expandBody } from './body.ts';
import { Connection } from './connection.ts';
import type { Documents } from './documents.ts';
import { sendError, sendJson, sendResult } from './http-reply.ts';
import { asBatchportError, Inference, QUEUE_FULL_MESSAGE, type Reply } from './inference.ts';
import { ModelTable } from './model-table.ts';
import { answerEncoding, type RequestHeaders, readHeaders } from './request-headers.ts';
import { type Route, Router } from './router.ts';
import type { Serving } from './served-model.ts';

const HEAD_MAX_BYTES = 16 * 1024;
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
    this.#sweeper = setInterval(() => this.#budget.sweep(), settings.bodyIdleTimeoutS * 1000);
    this.#sweeper.unref();
  }

  /** Accepts connections on a listening socket inherited from the supervisor. */
  listen(fd: number): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen({ fd }, () => {
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
    const reply = new HttpReply(request, response, serving, answerEncoding(headers.acceptEncoding), startedUs);
    const { inference } = reply;
    try {
      // Refused from the headers, before a byte of the body has been looked at.
      if (this.#draining) throw new BatchportError('DRAINING', 'The server is shutting down.');
      if (serving.producer.full) throw new BatchportError('QUEUE_FULL', QUEUE_FULL_MESSAGE);
      new BodyRead(request, headers.contentLength, this.#budget, (error, body) => {
        if (error !== undefined) reply.refuse(error);
        else if (headers.contentEncoding === '') this.#submit(inference, headers, body);
        else void this.#expand(inference, headers, body);
      });
    } catch (error) {
      reply.refuse(asBatchportError(error), (headers.contentLength ?? Number.POSITIVE_INFINITY) > DRAIN_MAX_BYTES);
    }
  }

  #submit(inference: Inference, headers: RequestHeaders, body: Buffer): void {
    let headerLength: number | undefined;
    try {
      headerLength = parseInferenceHeaderLength(headers.inferenceHeaderLengths, body.length);
    } catch (error) {
      inference.fail(asBatchportError(error));
      return;
    }
    inference.submit(body, headerLength);
  }

  async #expand(inference: Inference, headers: RequestHeaders, body: Buffer): Promise<void> {
    try {
      const expanded = await expandBody(body, headers.contentEncoding, this.#budget.maxBodyBytes);
      if (!inference.finished) this.#submit(inference, headers, expanded);
    } catch (error) {
      inference.fail(asBatchportError(error));
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

/** Connects one inference to one HTTP exchange. */
class HttpReply implements Reply {
  readonly inference: Inference;
  readonly #request: IncomingMessage;
  readonly #response: ServerResponse;
  readonly #connection: Connection;
  readonly #encoding: 'gzip' | 'deflate' | undefined;

  constructor(
    request: IncomingMessage,
    response: ServerResponse,
    serving: Serving,
    encoding: 'gzip' | 'deflate' | undefined,
    startedUs: number,
  ) {
    this.#request = request;
    this.#response = response;
    this.#encoding = encoding;
    this.#connection = Connection.of(request.socket);
    this.inference = new Inference(serving, this, startedUs);
    this.#connection.add(this.inference);
  }

  /** Answers while the body has not been read to its end. */
  refuse(error: BatchportError, close = true): void {
    if (!close) this.#request.resume();
    else this.#response.shouldKeepAlive = false;
    this.inference.fail(error);
    // What still comes of the body is not read; the connection ends with the answer.
    if (close) this.#response.once('finish', () => this.#request.socket.destroySoon());
  }

  sendResult(response: EncodedResponse): void {
    this.#connection.delete(this.inference);
    sendResult(this.#response, response, this.#encoding);
  }

  sendError(error: BatchportError): void {
    this.#connection.delete(this.inference);
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

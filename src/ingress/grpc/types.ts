/** Types of grpc-js that it uses in its interfaces and does not export by name. */
import type { ServerInterceptingCallInterface } from '@grpc/grpc-js';

export type ServerCall = ServerInterceptingCallInterface;
export type ServerListener = Parameters<ServerCall['start']>[0];
export type CallStatus = Parameters<ServerCall['sendStatus']>[0];

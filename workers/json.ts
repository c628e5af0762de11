/** Piscina's entry for reading and writing large JSON and for processing large outputs: see src/ingress/json-task.ts. */
export { processOutputs, readJson, writeJson } from '../src/ingress/json-task.ts';

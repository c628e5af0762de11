/**
 * A stand-in for NVIDIA's management library, compiled from C when a test starts. What it answers stands in a text file that it reads at each call, so that a
 * test can change it while a server runs; FAKE_NVML_STATE names the file. Lines:
 *
 *     gpu UUID totalBytes usedBytes        one per GPU, in order
 *     process GPU pid usedBytes
 *     fail FUNCTION code                   the function gives this code
 *     hold FUNCTION file                   the function does not return while the file is there
 */
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import path from 'node:path';

const FILE = 'libnvidia-ml.so.1';

const SOURCE = `
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned long long u64;
typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned pid; u64 used; unsigned gpu, compute; } Process;

static FILE *state(void) { const char *file = getenv("FAKE_NVML_STATE"); return file ? fopen(file, "r") : NULL; }

/* What is said about a function; waits while it is held. */
static int fault(const char *function) {
  char line[512], name[128], word[128], file[256] = "";
  int code = 0;
  FILE *in = state();
  while (in && fgets(line, sizeof line, in)) {
    if (sscanf(line, "%127s %127s", word, name) != 2 || strcmp(name, function)) continue;
    if (!strcmp(word, "fail")) sscanf(line, "%*s %*s %d", &code);
    if (!strcmp(word, "hold")) sscanf(line, "%*s %*s %255s", file);
  }
  if (in) fclose(in);
  while (*file && access(file, F_OK) == 0) usleep(1000);
  return code;
}

static int gpu(unsigned wanted, char *uuid, Memory *memory) {
  char line[512], text[128];
  u64 total, used;
  unsigned n = 0;
  int found = 0;
  FILE *in = state();
  while (in && fgets(line, sizeof line, in)) {
    if (sscanf(line, "gpu %127s %llu %llu", text, &total, &used) != 3) continue;
    if (n++ != wanted) continue;
    found = 1;
    if (uuid) strcpy(uuid, text);
    if (memory) { memory->total = total; memory->used = used; memory->free = total - used; }
  }
  if (in) fclose(in);
  return wanted == ~0u ? (int)n : found;
}

const char *nvmlErrorString(int code) { return code == 9 ? "Driver Not Loaded" : code == 15 ? "GPU is lost" : "Some Error"; }
int nvmlInit_v2(void) { return fault("nvmlInit_v2"); }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)gpu(~0u, NULL, NULL); return fault("nvmlDeviceGetCount_v2"); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  if (!gpu(index, NULL, NULL)) return 2;
  *device = (void *)(unsigned long)(index + 1);
  return fault("nvmlDeviceGetHandleByIndex_v2");
}
int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
  char uuid[128];
  if (!gpu((unsigned)(unsigned long)device - 1, uuid, NULL) || strlen(uuid) >= length) return 2;
  strcpy(text, uuid);
  return fault("nvmlDeviceGetUUID");
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
  int code = fault("nvmlDeviceGetMemoryInfo");
  return code ? code : gpu((unsigned)(unsigned long)device - 1, NULL, memory) ? 0 : 2;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *processes) {
  char line[512];
  unsigned owner, pid, n = 0;
  u64 used;
  int code = fault("nvmlDeviceGetComputeRunningProcesses_v3");
  FILE *in = code ? NULL : state();
  while (in && fgets(line, sizeof line, in)) {
    if (sscanf(line, "process %u %u %llu", &owner, &pid, &used) != 3 || owner + 1 != (unsigned)(unsigned long)device) continue;
    if (n < *count) { processes[n].pid = pid; processes[n].used = used; }
    n++;
  }
  if (in) fclose(in);
  *count = n;
  return code;
}
`;

/** Builds the library in a folder, for LD_LIBRARY_PATH. @returns its path, or why tests that need it are skipped. */
export function buildFakeNvml(folder: string): string | { readonly skip: string } {
  const source = path.join(folder, 'nvml.c');
  const library = path.join(folder, FILE);
  fs.writeFileSync(source, SOURCE);
  const { status, error, stderr } = spawnSync('gcc', ['-shared', '-fPIC', '-O1', '-o', library, source], {
    encoding: 'utf8',
  });
  if (error !== undefined) return { skip: 'gcc is not installed' };
  return status === 0 ? library : { skip: `gcc cannot build the library: ${stderr}` };
}

-- For wrk: one request over and over. BENCH_BODY_FILE names the file with its body, BENCH_HEADERS holds its headers, one a line.
-- At the end prints `BENCH {…}`: requests, seconds, latencies in microseconds, and errors by kind.
local file = assert(io.open(os.getenv('BENCH_BODY_FILE'), 'rb'))
wrk.method = 'POST'
wrk.body = file:read('*a')
file:close()
for name, value in os.getenv('BENCH_HEADERS'):gmatch('([^:\n]+): ([^\n]*)') do wrk.headers[name] = value end

function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    '\nBENCH {"requests":%d,"seconds":%.6f,"medianUs":%.1f,"p99Us":%.1f,"errors":{"connect":%d,"read":%d,"write":%d,"timeout":%d,"status":%d}}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    e.connect, e.read, e.write, e.timeout, e.status))
end

/** Client for Octet: many small specialist models, served as one. */

export type { Answer, Chunk, TokenLogprob, TokenLogprobs, ToolCallPart, Usage } from "./answer.js";
export { AnswerStream } from "./answer_stream.js";
export type { CallOptions } from "./caller.js";
export { Chat, type ChatOptions, type Turn } from "./chat.js";
export { DEFAULT_URL, type Model, Models, Octet, type OctetOptions, Receipts } from "./client.js";
export * from "./errors.js";
export {
  type Job,
  type JobError,
  type JobEvent,
  JobEvents,
  type JobStatus,
  Jobs,
  type ListOptions,
  type SubmitOptions,
  type Watching,
  hasEnded,
} from "./jobs.js";
export type * from "./receipt.js";
export type {
  Asked,
  InferRequest,
  Message,
  Sampling,
  Schema,
  Settings,
  Structure,
  Tool,
  ToolCall,
  ToolChoice,
} from "./request.js";
export type { RetryPolicy } from "./retry.js";
export { EventParser, type ServerEvent } from "./sse.js";
export type { Fetch } from "./transport.js";

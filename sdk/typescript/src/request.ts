/** What may be asked for. Names are the server's; what is left out is chosen by the router. */

/** Any JSON Schema. */
export type Schema = Record<string, unknown>;

export interface ToolCall {
  id: string;
  name: string;
  /** JSON, as the model wrote it. */
  arguments: string;
}

/** One turn of a conversation. */
export interface Message {
  role: "system" | "developer" | "user" | "assistant" | "tool";
  content: string;
  tool_calls?: ToolCall[];
  /** Which call a tool's message answers. */
  tool_call_id?: string;
}

export interface Tool {
  name: string;
  description?: string;
  parameters?: Schema;
  strict?: boolean;
}

export type ToolChoice = "auto" | "none" | "required" | { name: string };

/** The form that an answer must have. */
export type Structure = { json_object: true } | { json_schema: Schema } | { regex: string } | { choice: string[] };

export interface Sampling {
  temperature?: number;
  top_k?: number;
  top_p?: number;
  min_p?: number;
  typical_p?: number;
  repetition_penalty?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  /** 0 for those of the chosen tokens, n for the n most likely as well. */
  num_logprobs?: number;
}

/** Everything beside what is said. */
export interface Settings extends Sampling {
  intent?: string;
  /** Only these may answer: the first, or else the second. */
  force_specialists?: string[];
  exclude_specialists?: string[];
  /** In the order they are applied. */
  adapters?: string[];
  /** The specialist and its adapters together, at most. */
  max_experts?: number;
  seed?: number;
  max_tokens?: number;
  min_tokens?: number;
  stop?: string[];
  ignore_eos?: boolean;
  /** Prompt and answer together may take so many tokens. */
  context_size?: number;
  /** 0 to 9, higher is served first. */
  priority?: number;
  /** From arrival at the server. `timeoutMs` of a call does this as well, and ends the waiting here. */
  timeout_ms?: number;
  /** From arrival at the server: without its first token by then, the request ends. */
  first_token_timeout_ms?: number;
  /** Requests of one conversation, to be sent where its beginning is still in memory. */
  session_id?: string;
  user_id?: string;
  /** The caller's own; only `session_id` is read. */
  metadata?: Record<string, string>;
  /** The answer is checked by its task's verifier, and the answer says what came of it. */
  validate?: boolean;
  structure?: Structure;
  /** Only with `messages`. */
  tools?: Tool[];
  tool_choice?: ToolChoice;
}

/** Either a prompt or messages. */
export interface InferRequest extends Settings {
  prompt?: string;
  /** Text with {prompt} and {body} in it. */
  template?: string;
  /** What the prompt is about. */
  body?: string;
  /** A conversation, the newest message last. */
  messages?: Message[];
}

/** A text is a prompt. */
export type Asked = string | InferRequest;

export function requestOf(asked: Asked): InferRequest {
  return typeof asked === "string" ? { prompt: asked } : asked;
}

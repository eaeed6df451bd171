# SPDX-License-Identifier: MIT
"""Text to tokens and back: templates, tokenizers, and answers as they come.

  chat.ChatTemplate.render     messages, tools -> prompt
  answer_masks.documents       messages -> ids, and which the model wrote
  incremental.Detokenizer      ids   -> text that is final
  stops.Stops                  text  -> text before the first stop string
  delivery.Delivery            both: text, token strings and what usage counts
  answers.Deltas               text  -> reasoning, content, tool calls
  tool_choice.forced           tools -> a grammar that makes the answer a call

What reads an answer gives the same in the end however it is cut into pieces.
"""

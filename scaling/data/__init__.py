"""From text to batches: a source of documents, a tokenizer, tokens on disk, samples cut from them, and their order.

``source`` (documents) -> ``token_store`` (tokens, once, memory-mapped) -> ``packed`` (sample i is a slice) -> ``order``
(which samples a rank takes at a step). Each knows only the one before it. Another kind of sample (padded documents, a
stream) is a class beside ``PackedDataset`` with the same ``__len__`` and ``batch``; the order does not change.
"""

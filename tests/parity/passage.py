"""A passage for perplexities, longer than Gemma 3's window of 512 tokens, and texts that are hard to cut up."""

PASSAGE = """\
The harbour town of Ellermouth kept two clocks. The one on the customs house told the hour by which ships were \
charged, and the one on the chapel told the hour by which people ate, slept and were buried. For as long as anyone \
could remember they had disagreed by eleven minutes, and for as long as anyone could remember nobody had thought of \
this as a mistake. A captain who came in at six by the chapel paid for five, because by the customs house it was still \
ten minutes to; a baker who opened late had only to point down the hill. When the council hired a young clockmaker \
named Idris Vane to look after both, he asked on his first morning which of the two was right. The clerk looked at him \
for a while before he answered. "That," he said, "depends on what you owe."

Vane began, as he had been taught, with the measuring. He climbed the customs house with a lantern, a notebook and a \
chronometer that he had carried from the capital in a box lined with felt, and he counted the beats of the great \
pendulum for a whole night. The clock lost four seconds. The next night he counted in the chapel, where the bell rope \
brushed against his shoulder at every quarter, and that clock gained three. He wrote both numbers down, drew a line \
under them, and saw at once what troubled him: two clocks that drift apart by seven seconds a day cannot stay eleven \
minutes apart for a hundred years. Somebody had been moving the hands.

He did not tell the council. Instead he bought two reels of black thread, finer than hair, and tied a length across \
each of the doors behind the dials. For nine days nothing happened. On the tenth morning the thread at the customs \
house lay broken on the floor, and on the eleventh so did the one in the chapel. He measured again. The difference, \
which had grown to twelve minutes and four seconds, was eleven minutes exactly.

It took him until the first frost to find out who it was. The harbour pilot, a woman of seventy called Marte Lund, \
made no secret of it once he had asked her politely. Her mother had done it, she said, and her grandfather before \
that, ever since the winter in which the tide had taken the old mole. "The water in the channel turns eleven minutes \
later than the water at the quay. If you leave by the chapel and steer by the customs house, you pass the bar when it \
is deep enough. That is all. The children learn it as a rhyme, and the captains think it is about money." She poured \
him a cup of coffee that smelled of smoke. "You may set them both right, of course. You are the clockmaker. But then \
you must stand at the end of the mole in every storm, and shout."

Vane thought about the notebook, and about the professor who had told him that a clock has only one virtue. Then he \
asked her to teach him the rhyme. In the spring he wrote to the council that both clocks were in excellent order, that \
their mechanisms would serve for another century, and that he recommended a modest sum each year for thread. The sum \
was granted without discussion. It stands in the accounts to this day, between the oil for the lighthouse and the \
feed for the pilot's horse, and nobody in Ellermouth has ever asked what it is for.
"""

HARD_TEXTS = (
    "",
    " ",
    "Hello",
    " Hello  there,\n\n\n  world \t!\r\n",
    "def area(r: float) -> float:\n    return 3.14159 * r ** 2  # m²\n",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.",
    "「吾輩は猫である。」名前はまだ無い。",
    "Привет, мир! שלום עולם، مرحبا بالعالم",
    "👩‍👩‍👧‍👦 🇳🇿 e\u0301 \ufb01 \u200b\u00a0x",
    "1234567890 3,141.59 0x7F 10^-6",
    "I'll we've they're DON'T",
    "<|im_start|>user\nHi<|im_end|>\n<start_of_turn>model\n<bos><eos></s>",
)

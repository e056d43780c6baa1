"""Sentences for a first look at a text encoder: sixteen subjects, each told in four ways.

Sentences of one subject mean related things in different words, so that nearest neighbours have a meaning.
"""

SUBJECTS = {
    "weather": (
        "Heavy rain is expected along the coast this evening.",
        "A storm will reach the shore tonight, forecasters say.",
        "Strong wind and showers are forecast near the sea.",
        "Take an umbrella, it is going to pour this evening.",
    ),
    "cooking": (
        "Fry the onions slowly in butter until they turn golden.",
        "Chop the onions and soften them in a hot pan.",
        "She seasoned the onion soup with thyme and salt.",
        "Add garlic to the pan once the onions are brown.",
    ),
    "football": (
        "The striker scored twice in the second half.",
        "Two late goals won the match for the home team.",
        "The goalkeeper could not stop the second shot.",
        "Our team lost the football final on penalties.",
    ),
    "medicine": (
        "The doctor prescribed antibiotics for the infection.",
        "She takes two tablets a day against the bacteria.",
        "The patient recovered from the infection within a week.",
        "The nurse asked the patient whether the medicine helped.",
    ),
    "astronomy": (
        "The telescope photographed a galaxy far beyond our own.",
        "Astronomers found a planet in orbit around a nearby star.",
        "Light from that star takes thousands of years to reach us.",
        "A new observatory will search the sky for distant worlds.",
    ),
    "music": (
        "The violinist played the slow movement from memory.",
        "The orchestra rehearsed the symphony all afternoon.",
        "He practises the piano for two hours every morning.",
        "The concert ended with a quartet for strings.",
    ),
    "programming": (
        "The function returns an empty list when nothing matches.",
        "She fixed the bug in the code by checking the index first.",
        "The program crashes when the list is empty.",
        "Unit tests run on every commit to catch errors in the code.",
    ),
    "money": (
        "The central bank raised interest rates by half a point.",
        "Borrowing money has become more expensive this year.",
        "Mortgage rates went up again after the bank's decision.",
        "Inflation is falling, so the bank may cut rates soon.",
    ),
    "gardening": (
        "Plant the bulbs in autumn, two hands apart.",
        "The roses in the garden need pruning before the frost.",
        "Water the flower beds early in the morning.",
        "Compost keeps the soil of the garden loose.",
    ),
    "trains": (
        "The express to the capital leaves from platform nine.",
        "Our train was delayed by a fallen tree on the line.",
        "You can change at the junction for the night train.",
        "The conductor checked our railway tickets twice.",
    ),
    "animals": (
        "The cat sleeps on the warm windowsill all day.",
        "Our kitten chases the dog around the house.",
        "The puppy barks whenever the cat comes in.",
        "She feeds her pets before she goes to work.",
    ),
    "law": (
        "The court dismissed the appeal for lack of evidence.",
        "The judge postponed the hearing until March.",
        "The lawyer asked the witness about her statement.",
        "The jury found the defendant guilty of fraud.",
    ),
    "school": (
        "The pupils handed in their essays on Friday.",
        "Our teacher explained fractions to the class.",
        "The students passed the examination with good marks.",
        "Homework must be given to the teacher by Monday.",
    ),
    "travel": (
        "We rented a small house near the beach for August.",
        "The hotel room looks out over the sea.",
        "They spent their summer holiday on an island.",
        "A week at the beach was all the vacation we had.",
    ),
    "energy": (
        "The wind farm supplies power to forty thousand homes.",
        "Solar panels on the roof charge the battery by noon.",
        "The old coal plant will give way to renewable energy.",
        "Turbines at sea produce electricity even at night.",
    ),
    "history": (
        "The treaty ended a war that had lasted thirty years.",
        "The king's army besieged the castle for a winter.",
        "The empire fell after its last emperor was captured.",
        "Soldiers of both kingdoms died in the long war.",
    ),
}

SENTENCES = tuple(sentence for sentences in SUBJECTS.values() for sentence in sentences)
